"""The whole job: which runs in which order, on which server, and what came of them."""
