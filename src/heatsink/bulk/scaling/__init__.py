"""How many workers each partition should have: the measured load, and the scaling policies."""
