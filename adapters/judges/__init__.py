"""Judge profiles (next round)."""
