"""Settings in, adapters out."""
