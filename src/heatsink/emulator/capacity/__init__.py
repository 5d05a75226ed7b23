"""Hot partitions: what a partitioned store does about heat by itself, and where it stops. Pure."""
