"""How many workers a partition gets, and when a Redis has too much to do."""
