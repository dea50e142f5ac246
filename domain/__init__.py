"""What Synth is, without the world: records, mathematics, lifecycles and use cases. No I/O."""
