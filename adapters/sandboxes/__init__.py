"""Isolated boxes."""
