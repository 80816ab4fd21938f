"""Launchers: ways to run a program on each of several nodes. One interface, one module a launcher."""
