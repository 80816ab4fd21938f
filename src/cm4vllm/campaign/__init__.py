"""The whole job: which runs in which order, on which server, and their outcome."""
