"""Detection of host, CPU, memory, disk and GPUs, and the system description of a submission."""
