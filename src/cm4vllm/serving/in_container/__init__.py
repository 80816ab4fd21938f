"""Programs that run with the Python of an image, inside a container: they import nothing of the package."""
