"""Git repositories, read without their configuration."""
