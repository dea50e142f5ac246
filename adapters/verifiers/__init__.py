"""Assess retained outputs."""
