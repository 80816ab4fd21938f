"""The rehearsal of a job for another machine: a simulated server takes the place of vLLM."""
