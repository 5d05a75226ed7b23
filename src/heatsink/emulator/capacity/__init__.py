"""Hot partitions: how a partitioned store relieves them by itself, and where it cannot. Pure."""
