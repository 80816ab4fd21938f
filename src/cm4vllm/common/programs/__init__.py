"""Programs: their processes, environments and containers."""
