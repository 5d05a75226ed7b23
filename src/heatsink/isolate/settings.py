"""What an application may choose about its timelines."""

from __future__ import annotations

import msgspec

from heatsink.checks import check_number, check_whole

FOLLOWERS_MAX = 10**9


class TimelineSettings(msgspec.Struct, frozen=True):
    """When an author is pulled, and how long posts of theirs are cached.

    With `threshold` followers; or with pushes of `costly_writes_s` homes a second that are
    `costly_ratio` times what the followers read. The same in every process, or they disagree.
    """

    threshold: int = 10_000
    fresh_for: float = 0.5
    stale_for: float = 5.0
    costly_writes_s: float = 1_000.0
    costly_ratio: float = 4.0

    def __post_init__(self) -> None:
        check_whole("threshold", self.threshold, 1, FOLLOWERS_MAX)
        check_number("costly_writes_s", self.costly_writes_s, 0.001)
        check_number("costly_ratio", self.costly_ratio, 1)
