"""Protocols without I/O: a message in, messages and effects out."""
