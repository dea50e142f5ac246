"""Native formats of model families."""
