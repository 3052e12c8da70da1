"""Anabranch: signed histories that part and join again."""

__version__ = "0.1.0"
