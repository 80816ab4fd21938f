"""vLLM in an environment: its choice, its installation and the proof that it serves."""
