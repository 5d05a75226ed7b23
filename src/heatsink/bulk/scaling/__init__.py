"""How many workers each partition should have: what is seen, and the policies that decide."""
