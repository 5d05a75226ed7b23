"""Act 1: one conversation goes viral."""
