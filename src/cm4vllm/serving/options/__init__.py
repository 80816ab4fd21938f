"""Options of a vLLM server: those of settings and presets, those that are fixed and those that a search varies."""
