"""Push or pull: decided by an author's number of followers and by the cost of pushing.

Authors whose followers reach a threshold are pulled. Authors below the threshold are pulled if
pushing costs far more than their followers' reads. The cost of pushing is `posts/s × followers`
homes written per second. It is compared with the number of homes read per second. Both rules switch
back to push only well below the limit, so that modes do not flap. The reason of a change begins
with the rule that caused it.
"""

from __future__ import annotations

from typing import NamedTuple

from heatsink.primitives.checks import CheckedStruct, check_number, check_whole
from heatsink.primitives.words import counted

PUSHED, PULLED = "push", "pull"
SLACK = 0.8  # a pulled author goes back to push well below the threshold
COST_SLACK = 0.5  # the same for costs, which vary more
COST_HOLD_S = 60.0  # the registry keeps every change of mode, so there is not one for each burst
BY_COST = "cost: "
FOLLOWERS_MAX = 10**9


class PostingCost(NamedTuple):
    """What an author's posts cost per second. `reads_s` is None if reads were not measured."""

    posts_s: float
    followers: int
    reads_s: float | None = None

    @property
    def writes_s(self) -> float:
        """How many homes would be written per second if every post was pushed."""
        return self.posts_s * self.followers

    def is_above(self, writes_s: float, ratio: float) -> bool:
        return self.writes_s >= writes_s and self.writes_s >= ratio * (self.reads_s or 0.0)

    def __str__(self) -> str:
        rate = f"{self.posts_s:,.0f}" if self.posts_s >= 10 else f"{self.posts_s:.2g}"
        posts = f"{rate} posts/s × {counted(self.followers, 'follower')}"
        reads = "" if self.reads_s is None else f" against {self.reads_s:,.0f} reads/s"
        return f"{posts} = {self.writes_s:,.0f} writes/s{reads}"


class Author(NamedTuple):
    """An author's mode, the reason for the mode, how long it has been in force, and the cost."""

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
    """The limits at which an author's posts are pulled instead of pushed."""

    threshold: int
    costly_writes_s: float
    costly_ratio: float

    def is_costly(self, cost: PostingCost) -> bool:
        return cost.is_above(self.costly_writes_s, self.costly_ratio)

    def is_cheap(self, cost: PostingCost) -> bool:
        slack = COST_SLACK
        return not cost.is_above(self.costly_writes_s * slack, self.costly_ratio * slack)


def wanted_mode(author: Author, limits: ModeLimits) -> tuple[str, str] | None:
    """Return the mode to change to, and the reason. None if the mode should not change."""
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


class TimelineSettings(CheckedStruct, frozen=True):
    """When authors are pulled, and how old cached posts in a home may be.

    Use the same values in every process: otherwise processes disagree about an author's mode.
    """

    threshold: int = 10_000
    """Authors with this many followers are pulled. Below 80 % of this number, they are pushed."""
    fresh_for: float = 0.5
    """For this many seconds, a cached post is served without another read."""
    stale_for: float = 5.0
    """A cached post that is older than this many seconds is never served."""
    costly_writes_s: float = 1_000.0
    """An author is costly if pushing their posts would write this many homes per second."""
    costly_ratio: float = 4.0
    """A costly author is pulled if pushing writes this many homes for each home that is read.

    The author is pushed again when the writes are below half of `costly_writes_s`, or when the
    writes for each read are below half of `costly_ratio`.
    """

    def __post_init__(self) -> None:
        check_whole("threshold", self.threshold, 1, FOLLOWERS_MAX)
        check_number("costly_writes_s", self.costly_writes_s, 0.001)
        check_number("costly_ratio", self.costly_ratio, 1)
