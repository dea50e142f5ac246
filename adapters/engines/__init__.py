"""How a profile starts a harness."""
