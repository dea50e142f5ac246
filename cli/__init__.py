"""The synth command and every process entry point."""
