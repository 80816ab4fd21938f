"""The records of a power session: its phases, its messages, the samples of its analyzer."""
