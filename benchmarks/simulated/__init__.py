"""Simulated servers on a simulated clock, with the probes of both searches: known answers to compare with."""
