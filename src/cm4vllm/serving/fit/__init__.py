"""The fit of a model on a machine, and the best layout: computed before anything is loaded."""
