"""Documents people write: profiles, plans, settings."""
