"""Use cases: what the command line, the gateway and Dagster call."""
