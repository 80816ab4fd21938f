"""The options of vLLM: as its help lists them, as a command line gives them, and what they mean for a machine."""
