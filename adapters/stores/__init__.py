"""Create-only, content-addressed objects."""
