"""How members share partitions: evenly, each with its own order, so that they rarely collide."""

from __future__ import annotations

from collections.abc import Sequence


def quota(name: str, members: Sequence[str], partitions: int) -> int:
    """How many partitions a member may own; all quotas together are all partitions."""
    if name not in members:
        return 0
    each, rest = divmod(partitions, len(members))
    return each + (sorted(members).index(name) < rest)


def wanted_first(name: str, members: Sequence[str], partitions: Sequence[int]) -> list[int]:
    """Everyone begins at a place of its own and then takes what others left."""
    if name not in members:
        return list(partitions)
    start = sorted(members).index(name) * len(partitions) // len(members)
    return [*partitions[start:], *partitions[:start]]
