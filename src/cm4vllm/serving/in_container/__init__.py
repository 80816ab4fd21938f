"""The program that runs with the Python of an image, inside a container: it imports nothing of the package."""
