"""`heatsink serve`: the whole system in one process."""
