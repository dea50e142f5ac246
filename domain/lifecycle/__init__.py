"""Control flow over ports: trials, groups, units, updates. No I/O of its own."""
