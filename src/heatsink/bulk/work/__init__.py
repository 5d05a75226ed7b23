"""Running items: consumers own queue partitions, and their workers run handlers."""
