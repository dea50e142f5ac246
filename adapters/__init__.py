"""Ports made real: one file or small folder for each outside thing. Never imports Dagster."""
