"""Basics that every package needs: errors, files, child processes, progress and units.

Like the engine, it needs only the standard library (records and settings aside, which recipes use), so that
`cm` works in a Python that has no more than cmind.
"""
