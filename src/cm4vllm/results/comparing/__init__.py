"""Two or more results against each other."""
