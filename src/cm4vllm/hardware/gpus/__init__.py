"""GPUs and other accelerators, asked of their drivers."""
