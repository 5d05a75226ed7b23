"""Push or pull: by how many followers an author has, and by what pushing costs.

The number of followers comes first. Below that threshold, authors are pulled who post so much that
pushing is far more work than their followers' reads: `posts/s × followers` homes written, against
homes read. Both rules leave a gap between push and pull, so that modes do not flap. The reason of a
change begins with the rule that caused it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from heatsink.primitives.checks import check_number, check_whole

PUSHED, PULLED = "push", "pull"
SLACK = 0.8  # a pulled author goes back to push well below the threshold
COST_SLACK = 0.5  # costs are measured, and vary
COST_HOLD_S = 60.0  # a change of mode is for ever in the author's epochs: not one for each burst
BY_COST = "cost: "
FOLLOWERS_MAX = 10**9


class PostingCost(NamedTuple):
    """What an author's posts cost a second. `reads_s` is None where nobody had to look."""

    posts_s: float
    followers: int
    reads_s: float | None = None

    @property
    def writes_s(self) -> float:
        """Homes written if every post is pushed."""
        return self.posts_s * self.followers

    def is_above(self, writes_s: float, ratio: float) -> bool:
        return self.writes_s >= writes_s and self.writes_s >= ratio * (self.reads_s or 0.0)

    def __str__(self) -> str:
        rate = f"{self.posts_s:,.0f}" if self.posts_s >= 10 else f"{self.posts_s:.2g}"
        posts = f"{rate} posts/s × {self.followers:,} followers"
        reads = "" if self.reads_s is None else f" against {self.reads_s:,.0f} reads/s"
        return f"{posts} = {self.writes_s:,.0f} writes/s{reads}"


class Author(NamedTuple):
    """What is known of an author who posts. `why` they have their mode, and for how long."""

    mode: str
    why: str
    held_s: float
    cost: PostingCost

    @property
    def followers(self) -> int:
        return self.cost.followers

    @property
    def is_pulled_by_cost(self) -> bool:
        return self.mode == PULLED and self.why.startswith(BY_COST)


class ModeLimits(NamedTuple):
    """From where on an author is pulled."""

    threshold: int
    costly_writes_s: float
    costly_ratio: float

    def is_costly(self, cost: PostingCost) -> bool:
        return cost.is_above(self.costly_writes_s, self.costly_ratio)

    def is_cheap(self, cost: PostingCost) -> bool:
        slack = COST_SLACK
        return not cost.is_above(self.costly_writes_s * slack, self.costly_ratio * slack)


def wanted_mode(author: Author, limits: ModeLimits) -> tuple[str, str] | None:
    """The mode to change to, and why; None to stay."""
    if author.is_pulled_by_cost:
        return _of_costly(author, limits)
    pulled = author.mode == PULLED
    low = int(limits.threshold * SLACK)
    if author.followers >= (low if pulled else limits.threshold):
        return None if pulled else (PULLED, _many(author, limits))
    if limits.is_costly(author.cost):
        return PULLED, f"{BY_COST}{author.cost}"
    if pulled:
        return PUSHED, f"followers: {author.followers:,}, fewer than {low:,} are pushed again"
    return None


def _of_costly(author: Author, limits: ModeLimits) -> tuple[str, str] | None:
    if author.followers >= limits.threshold:
        return PULLED, _many(author, limits)
    if author.held_s >= COST_HOLD_S and limits.is_cheap(author.cost):
        return PUSHED, f"{BY_COST}{author.cost}, little enough to push again"
    return None


def _many(author: Author, limits: ModeLimits) -> str:
    return f"followers: {author.followers:,}, {limits.threshold:,} or more are pulled"


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
