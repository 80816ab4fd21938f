"""Pictures of runs, as SVG."""
