"""The process that runs LoadGen, and the one that follows it to its end."""
