"""Servers in containers: the image that has vLLM, the container of each server, and containers left behind."""
