"""A model with real weights that a Python package carries, and articles to sum up: measured without a model hub."""
