"""vLLM: its installation, its arguments, and a server's life."""
