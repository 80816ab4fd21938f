"""The parts of benchmarks/gpu.py, what it keeps of them, and the time that they may take."""
