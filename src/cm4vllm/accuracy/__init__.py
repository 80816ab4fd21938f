"""Scores of an accuracy log, computed as the reference scripts do."""
