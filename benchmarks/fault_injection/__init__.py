"""A small whole job on a fast server of its own, into which faults are injected."""
