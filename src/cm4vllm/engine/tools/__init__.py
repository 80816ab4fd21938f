"""What `cm` offers around scripts: lint, doctor, help, find, test, docker, add, register."""
