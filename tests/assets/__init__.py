"""Tests: assets."""
