"""What the machine is: host, CPU, memory, disk and GPU detection, and the system description of a submission."""
