"""What decides when: sensors, schedules and jobs."""
