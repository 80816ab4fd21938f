"""What a run leaves: its records, typed, and the readers of LoadGen's logs. Both sides use them: measuring, judging."""
