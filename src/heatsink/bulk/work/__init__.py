"""The side that runs items: consumers that own partitions, and workers that run handlers."""
