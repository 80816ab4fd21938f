"""Servers asked over HTTP: what they are, what they answer, and their metrics."""
