"""Heatsink with 32 workers on a single partition, where batches cannot but meet."""

from __future__ import annotations

from ours import run

from heatsink.bulk.settings import BulkSettings

if __name__ == "__main__":
    run(BulkSettings(partitions=1, durability="relaxed"), workers=32)
