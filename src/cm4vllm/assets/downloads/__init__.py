"""Downloads: resumed, and checked against published digests."""
