"""The public script format: metas read into frozen types, their variations, conditions and versions."""
