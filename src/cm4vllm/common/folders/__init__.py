"""Folders and files that belong to cm4vllm, and those that do not."""
