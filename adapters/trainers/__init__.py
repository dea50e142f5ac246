"""Ordered learning operations with ids."""
