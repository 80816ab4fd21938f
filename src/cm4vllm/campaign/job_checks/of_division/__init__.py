"""The checks of a job against the rules of its division; a new one is a function under @check in any module here."""
