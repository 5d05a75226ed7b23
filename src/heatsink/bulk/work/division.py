"""Which partitions of the queue a worker process may own.

Members of the queue divide its partitions evenly. Two rules make sure that no item waits for a
process that lacks its action while another process has the action:

- A *plain* member has built-in actions only, as has the worker of `heatsink serve` without
  `--actions`. It owns no partition while a member with other actions is there.
- If a member finds an item whose action only another member has, it gives the partition up, and
  does not take it for a while. Members that have the action take the partition first. For this they
  may own twice their even share. Later the partition is divided like any other. A partition with
  items of several such actions changes owners again and again. A member keeps it for a *tenure* at
  least, and items of unknown actions are postponed for no longer than that. So every action has its
  turn.

Members announce these facts as *notices*, among the actions that they offer. The names of notices
begin with `heatsink.`, as those of built-in actions do. So members of earlier releases ignore them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from heatsink.bulk.actions import BUILT_IN
from heatsink.bulk.changes import LACKS, lacked_at
from heatsink.primitives.clock import Clock

from .handler_errors import UNKNOWN_S

PLAIN = f"{BUILT_IN}plain/"
AWAY = 2  # in tenures: for how long a member leaves a partition to others
NOTICES = 6  # in tenures: how long a member announces that it lacks an action
LENT = 2  # in even shares: what a member may own if others lack actions that it has
LEGACY_PREFIX = "unpartitioned/"  # of consumers that share the unpartitioned queue


def consumer_name(name: str, partitioned: bool) -> str:
    """Return the name of a consumer in the queue."""
    return name if partitioned else LEGACY_PREFIX + name


class Share(NamedTuple):
    """What a member should own. It keeps `kept`, and gives up all other partitions that it has.

    Then it tries to own partitions in `called` as long as it owns fewer than `most`, and after them
    partitions in `others` as long as it owns fewer than `even`.
    """

    kept: list[int]
    called: list[int]
    others: list[int]
    most: int
    even: int


class Division:
    """One member's part in the division, from what all members announce."""

    def __init__(self, name: str, actions: Collection[str], member_s: float, clock: Clock) -> None:
        self._name = name
        self._actions = frozenset(actions)
        self._tenure_s = max(member_s, UNKNOWN_S[1])
        self._clock = clock
        self._is_plain = all(action.startswith(BUILT_IN) for action in actions)
        self._offered: frozenset[str] = frozenset()
        self._lacked: dict[tuple[int, str], float] = {}
        self._since: dict[int, float] = {}
        self._leaving: set[int] = set()
        self._away: dict[int, float] = {}

    @property
    def announced(self) -> list[str]:
        """The actions and notices that this member announces now."""
        now_s = self._clock.monotonic_s()
        self._lacked = {at: until_s for at, until_s in self._lacked.items() if until_s > now_s}
        notices = [f"{LACKS}{partition}/{action}" for partition, action in self._lacked]
        return [*sorted(self._actions), *notices, *([PLAIN + self._name] if self._is_plain else [])]

    def lacks(self, partition: int, action: str) -> bool:
        """Note that a partition has an item whose action this member lacks.

        Returns whether another live member has the action. Then this member gives the partition up.
        """
        if action not in self._offered:
            return False
        until_s = self._clock.monotonic_s() + NOTICES * self._tenure_s
        self._lacked[partition, action] = until_s
        self._leaving.add(partition)
        return True

    def share(
        self,
        everybody: Iterable[str],
        offered: Collection[str],
        partitions: Sequence[int],
        mine: Collection[int],
    ) -> Share:
        """Return what this member owns now. `mine` are the partitions that it has."""
        self._offered = frozenset(offered)
        self._leave(mine)
        is_legacy = self._name.startswith(LEGACY_PREFIX)
        members = [name for name in everybody if name.startswith(LEGACY_PREFIX) == is_legacy]
        dividing = [name for name in members if PLAIN + name not in self._offered] or members
        even = quota(self._name, dividing, len(partitions))
        lacked = lacked_at(self._offered)
        calling = {number for number, names in lacked.items() if names & self._actions}
        most = max(LENT * even, 1) if calling and self._name in dividing else even
        known = {*partitions}.difference(self._away)
        had = sorted(known.intersection(mine))
        called = [number for number in had if number in calling][:most]
        kept = called + [n for n in had if n not in calling][: min(even, most - len(called))]
        others = known.difference(kept)
        order = [n for n in wanted_first(self._name, dividing, partitions) if n in others]
        return Share(
            kept=sorted(kept),
            called=[n for n in order if n in calling],
            others=[n for n in order if n not in calling],
            most=most,
            even=even,
        )

    def _leave(self, mine: Iterable[int]) -> None:
        """Leave partitions with items of unknown actions, if this member had them for a tenure."""
        now_s = self._clock.monotonic_s()
        self._since = {number: self._since.get(number, now_s) for number in mine}
        self._leaving &= self._since.keys()
        self._away = {number: until_s for number, until_s in self._away.items() if until_s > now_s}
        for number in sorted(self._leaving):
            if now_s - self._since[number] >= self._tenure_s:
                self._leaving.remove(number)
                self._away[number] = now_s + AWAY * self._tenure_s


def quota(name: str, members: Sequence[str], partitions: int) -> int:
    """Return how many partitions a member may own. The quotas of all add up to `partitions`."""
    if name not in members:
        return 0
    each, rest = divmod(partitions, len(members))
    return each + (sorted(members).index(name) < rest)


def wanted_first(name: str, members: Sequence[str], partitions: Sequence[int]) -> list[int]:
    """Return in which order a member tries to own partitions. Each starts at a different one."""
    if name not in members:
        return list(partitions)
    start = sorted(members).index(name) * len(partitions) // len(members)
    return [*partitions[start:], *partitions[:start]]
