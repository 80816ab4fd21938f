"""The official checkers and their messages."""
