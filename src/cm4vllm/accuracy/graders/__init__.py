"""Graders: official scripts at pinned commits that judge answers by running them, inside a sandbox."""
