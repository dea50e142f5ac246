"""Immutable records: the words of the platform (architecture, section 2)."""
