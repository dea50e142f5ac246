"""Serve exactly one policy version per name."""
