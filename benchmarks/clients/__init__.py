"""The clients that benchmarks/client.py compares, and the server that they ask."""
