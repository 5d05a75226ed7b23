"""What an application may choose about its timelines."""

from __future__ import annotations

import msgspec

from heatsink.checks import check_number, check_whole

FOLLOWERS_MAX = 10**9


class TimelineSettings(msgspec.Struct, frozen=True):
    """From where on posts are pulled, and how old what homes show may be.

    The same in every process, or they disagree about authors.
    """

    threshold: int = 10_000
    """Authors with so many followers are pulled; until 80 % of it again."""
    fresh_for: float = 0.5
    """For how long posts of pulled authors are served as they were read."""
    stale_for: float = 5.0
    """What is older than this is never shown."""
    costly_writes_s: float = 1_000.0
    """Authors whose pushes would write so many homes a second may be pulled by cost."""
    costly_ratio: float = 4.0
    """They are, if that is so many times what their followers read; until half of either again."""

    def __post_init__(self) -> None:
        check_whole("threshold", self.threshold, 1, FOLLOWERS_MAX)
        check_number("costly_writes_s", self.costly_writes_s, 0.001)
        check_number("costly_ratio", self.costly_ratio, 1)
