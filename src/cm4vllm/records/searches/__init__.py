"""The records of searches: for a rate, and for the settings of a server."""
