"""One LoadGen run: the process that runs LoadGen, the client, and the reader of its logs."""
