"""The client: the wire protocol, the connections, and the worker processes that hold them."""
