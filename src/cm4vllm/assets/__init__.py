"""Models and datasets: where they come from, what they are, and their digests."""
