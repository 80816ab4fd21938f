"""Capsules: all that a result was made with, in one file; measured again, and compared."""
