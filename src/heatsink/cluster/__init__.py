"""Balances a Redis or Valkey Cluster by heat: looks at its slots, plans moves, and makes them."""
