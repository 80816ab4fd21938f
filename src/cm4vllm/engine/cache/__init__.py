"""The cache: entries, what they are known by, their reuse, and the pages that show them."""
