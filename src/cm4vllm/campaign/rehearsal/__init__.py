"""A job rehearsed for a machine that one does not have: a simulated server takes the place of vLLM."""
