"""Published results that can be measured again."""
