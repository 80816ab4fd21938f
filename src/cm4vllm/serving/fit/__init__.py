"""Whether a model fits a machine, and with which layout: asked before anything is loaded."""
