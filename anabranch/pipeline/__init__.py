"""The data pipeline: the same log at any size, as tables."""
