"""The one form of checks, of what they find, and of what may not leave a machine."""
