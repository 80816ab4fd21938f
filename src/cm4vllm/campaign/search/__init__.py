"""The search for the highest target rate that keeps a scenario's latency limits, by LoadGen's own test."""
