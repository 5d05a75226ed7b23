"""What all other packages build on: time and chance, ids, keys, checks, ownership, connections."""
