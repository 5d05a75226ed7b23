"""Heatsink if every item is submitted by a call of its own, by 64 callers."""

from __future__ import annotations

from ours import SETTINGS, run

if __name__ == "__main__":
    run(SETTINGS, together=1)
