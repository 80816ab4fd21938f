"""The script engine: what stands behind `cm run script` in this repository.

It reads the public CM script format and needs only the standard library and PyYAML, so that it works in a Python that
has no more than cmind. `docs/engine.md` shows the way of a run through these modules.
"""
