"""Programs that run in the environment of the official checker (package endpoints-submission-cli)."""
