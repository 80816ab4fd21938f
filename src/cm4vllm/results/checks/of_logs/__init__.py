"""Checks of LoadGen's logs."""
