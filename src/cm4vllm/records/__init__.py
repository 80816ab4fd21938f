"""The records of runs, typed, and the readers of LoadGen's logs: shared by what measures and what judges."""
