"""A run: what is asked for, the script that is meant, its dependencies, environment, hooks and shell files."""
