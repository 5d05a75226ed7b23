"""How many workers each partition should have, and when a Redis has too much to do."""
