"""Tools of `cm` around scripts: lint, doctor, help, find, test, docker, add, register."""
