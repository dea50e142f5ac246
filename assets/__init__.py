"""The asset graph: thin assets over domain services."""
