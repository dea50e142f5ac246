"""Foreign task formats."""
