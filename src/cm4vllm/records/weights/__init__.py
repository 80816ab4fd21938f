"""The files of a model's folder as both sides read them: configuration, weights, sizes."""
