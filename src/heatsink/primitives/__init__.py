"""What every room builds on: time and chance, ids, keys, checks, ownership, connections."""
