"""State that must not be wrong."""
