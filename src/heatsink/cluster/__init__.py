"""Balances a Redis or Valkey Cluster by heat: measures its slots, plans moves, moves slots."""
