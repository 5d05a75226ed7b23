"""Heatsink with 10,000 tenants, each of whom submits ten items at a time."""

from __future__ import annotations

from ours import SETTINGS, run

if __name__ == "__main__":
    run(SETTINGS, together=10, tenants=10_000)
