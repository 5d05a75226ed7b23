"""The queue's plan: how many partitions it has, and which server holds each of them.

The plan is stored in the queue's home, so that all processes follow the same plan. The first
process creates the plan from its settings. `version` grows with every change.

A partition is at its *place*: the URL of a Redis, or the queue's home. Each place has a version,
`since`: the version of the plan that put the partition there. A process sends this version with
every call. A server that gave a partition away remembers the version of the move. It refuses every
call with this version or an older one. So a process with an outdated plan cannot leave items where
nobody runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from heatsink.errors import InvalidSetting, Misconfigured, Unavailable
from heatsink.primitives.checks import shown
from heatsink.primitives.words import counted

from .settings import BulkSettings

PARTITIONS = 16
NUMBERS_MAX = 65_536
HOME = "home"
LEGACY = -1
"""The number of the unpartitioned queue. Its keys in Redis have other names than the keys of
partitions, so that partitioned and unpartitioned queues can run side by side."""
_PORTS = {"redis": 6379, "rediss": 6379, "redis+cluster": 6379, "rediss+cluster": 6379}
_SENTINEL_PORT = 26379


class Spot(int):
    """A partition's number, and where the caller believes the partition to be: `url` and `since`.

    `since` is the version of the plan that put it there. Routers turn numbers into spots, and
    stores below a router get spots. A plain number is a partition at the queue's home that has
    never moved.
    """

    url: str
    since: int

    def __new__(cls, number: int, url: str = "", since: int = 0) -> Self:
        spot = super().__new__(cls, number)
        spot.url, spot.since = url, since
        return spot

    @property
    def place(self) -> tuple[str, int]:
        return self.url, self.since


def spot_of(partition: int) -> Spot:
    return partition if isinstance(partition, Spot) else Spot(partition)


class PlaceClosed(Unavailable):
    """The Redis that was asked has given the partition away, or is about to.

    `version` is the version of this move. `to` is the URL of the new place, without login.
    """

    def __init__(self, partition: int, version: int, to: str) -> None:
        super().__init__(
            f"queue partition {partition} moves to {to or HOME} (version {version} of the queue's "
            "plan): retry later; if nobody finishes the move, run `heatsink bulk place "
            f"{partition} {to or HOME}`"
        )
        self.version = version
        self.to = to


class Place(msgspec.Struct, frozen=True):
    """Where a partition is: the URL of a Redis, or an empty text for the queue's home.

    `since` is the version of the plan that put the partition there.
    """

    url: str = ""
    since: int = 0

    def __repr__(self) -> str:
        """Return a text without the login in the URL."""
        return f"Place({named(self.url)!r}, since={self.since})"


class PartitionMove(msgspec.Struct, frozen=True):
    """A partition's move that has begun: to which URL, and with which version of the plan."""

    to: str
    version: int

    def __repr__(self) -> str:
        """Return a text without the login in the URL."""
        return f"Move({named(self.to)!r}, version={self.version})"


class Founding(msgspec.Struct, frozen=True):
    """What the queue was founded with. The URLs of `places` have no logins."""

    partitions: int
    places: dict[int, str] = {}


class QueuePlan(msgspec.Struct, frozen=True):
    """The number and places of the queue's partitions.

    `partitions` is the current number: new parts go only to partitions below this number.
    `high_water` is the highest number of partitions that the queue ever had. Workers run the items
    of all these partitions. `places` lists the partitions that are not at the queue's home. `moves`
    lists the partitions that are about to move: these get no new parts.
    """

    partitions: int
    high_water: int
    version: int = 0
    places: dict[int, Place] = {}
    moves: dict[int, PartitionMove] = {}
    founded: Founding | None = None

    def place(self, partition: int) -> Place:
        return self.places.get(partition, Place())

    def spot(self, partition: int) -> Spot:
        place = self.place(partition)
        return Spot(partition, place.url, place.since)

    @property
    def routes(self) -> tuple[dict[int, Place], dict[int, PartitionMove]]:
        """The fields that decide to which server a call goes, and where new parts go."""
        return self.places, self.moves

    def moving(self, partition: int, to: str) -> QueuePlan:
        """Return the plan in which the partition gets no new parts, since it moves to `to`."""
        version = self.version + 1
        return replace(
            self, moves={**self.moves, partition: PartitionMove(to, version)}, version=version
        )

    def placed(self, partition: int, url: str, after: int = 0) -> QueuePlan:
        """Return the plan that has the partition at `url`, with a version above `after`."""
        version = max(self.version, after) + 1
        moves = {number: move for number, move in self.moves.items() if number != partition}
        places = {**self.places, partition: Place(url, version)}
        return replace(self, places=places, moves=moves, version=version)

    def repartitioned(self, partitions: int) -> QueuePlan:
        most = max(self.high_water, partitions)
        return replace(self, partitions=partitions, high_water=most, version=self.version + 1)

    def reaching(self, partitions: int) -> QueuePlan:
        """Return the plan with which workers serve the first `partitions` partitions, or more.

        Batches may have parts there if the server lost a plan with a higher `high_water`.
        """
        most = max(self.high_water, partitions)
        return replace(self, high_water=most, version=self.version + 1)


class PartitionPlace(msgspec.Struct, frozen=True):
    """Where a partition is, for people: URLs have no logins, and `home` is the queue's home.

    `since` is the version of the plan that put the partition there. `moves_to` is empty unless the
    partition moves.
    """

    number: int
    place: str
    since: int
    moves_to: str = ""


def place_in(plan: QueuePlan, number: int) -> PartitionPlace:
    place, move = plan.place(number), plan.moves.get(number)
    to = named(move.to) if move else ""
    return PartitionPlace(number, named(place.url), place.since, to)


def bare(url: str) -> str:
    """Return the URL without login and options. URLs of the same server have the same bare form."""
    parts = urlsplit(url)
    port = _PORTS.get(parts.scheme, _SENTINEL_PORT if "sentinel" in parts.scheme else 0)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    named = [host if _has_port(host) or not port else f"{host}:{port}" for host in hosts]
    path = parts.path.strip("/")
    is_default = path == "0" and parts.scheme in _PORTS
    tail = f"/{path}" if path and not is_default else ""
    return f"{parts.scheme}://{','.join(named)}{tail}"


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


def named(url: str) -> str:
    """Return the name of a place for people: without login, and `home` for the queue's home."""
    return bare(url) if url else HOME


def partition_number(partition: object) -> int:
    """Return the number of a partition. In settings from a TOML file, the number is text."""
    text = str(partition)
    if text == str(LEGACY) or (text.isdecimal() and int(text) < NUMBERS_MAX):
        return int(text)
    raise InvalidSetting(
        f"each key of BulkSettings(places=…) must be a partition number, not {shown(partition)}",
        field="places",
    )


def founding(settings: BulkSettings, home: str) -> QueuePlan:
    """Return the plan of a queue that is founded with these settings. `home` is its bare URL."""
    partitions = settings.partitions or PARTITIONS
    given = {partition_number(number): url for number, url in settings.places.items()}
    away = {number: url for number, url in given.items() if bare(url) != home}
    return QueuePlan(
        partitions,
        partitions,
        places={number: Place(url) for number, url in away.items()},
        founded=Founding(partitions, {number: bare(url) for number, url in away.items()}),
    )


def check_follows(settings: BulkSettings, plan: QueuePlan, home: str) -> list[str]:
    """Compare the settings with which a process was started to the stored plan.

    Raises `Misconfigured` if a setting equals neither the queue's first value nor its present
    one. Returns a warning for each setting that an operator has changed since.
    """
    mine, founded = founding(settings, home), plan.founded or Founding(plan.partitions)
    warnings = []
    if settings.partitions not in (None, plan.partitions):
        wrong = _wrong_partitions(mine.partitions, plan.partitions, founded.partitions)
        if mine.partitions != founded.partitions:
            raise Misconfigured(wrong, field="partitions")
        warnings.append(wrong)
    if settings.places:
        for number in sorted({*mine.places, *plan.places}):
            wanted, stored = named(mine.place(number).url), named(plan.place(number).url)
            if wanted == stored:
                continue
            wrong = _wrong_place(number, wanted, stored)
            if wanted != founded.places.get(number, HOME):
                raise Misconfigured(wrong, field="places")
            warnings.append(wrong)
    return warnings


def _wrong_partitions(mine: int, stored: int, founded: int) -> str:
    since = f" (founded with {founded})" if founded != stored else ""
    return (
        f"partitions is {mine}, but this queue has {counted(stored, 'partition')}{since}: leave "
        "partitions (--partitions) out, since the queue stores the number, or change the queue "
        f"with `heatsink bulk repartition {mine}`"
    )


def _wrong_place(number: int, mine: str, stored: str) -> str:
    return (
        f"places puts partition {number} at {mine}, but this queue has it at {stored}: leave "
        "places (--place) out, since the queue stores them, or move the partition with "
        f"`heatsink bulk place {number} {mine}`"
    )


def places_of(texts: Mapping[str, str]) -> dict[int, str]:
    """Return the places in settings from the command line or a file, by partition number."""
    return {partition_number(number): url for number, url in texts.items()}


class Remains(msgspec.Struct, frozen=True):
    """The answer of a place that was told to give its partition away.

    The place refuses while anything remains: `parts` that have not ended, their `items`, or `ends`
    of parts that were not reported to their batches yet. It also refuses if `is_target`: the move
    goes to this very place. `closed` is the version of the newest move by which it gave the
    partition away, or -1. `to` is the target of that move.
    """

    closed: int
    parts: int = 0
    ends: int = 0
    items: int = 0
    is_target: bool = False
    to: str = ""


class PlaceMarks(msgspec.Struct, frozen=True):
    """What a Redis remembers of a partition's moves.

    `moved` is the version of the newest move away from this Redis, and `to` its target. `prepared`
    is the version of the newest move to this Redis. -1 means that there was no such move. The
    caller asks for certain parts: `parts` says how many of them are here.
    """

    moved: int = -1
    to: str = ""
    prepared: int = -1
    parts: int = 0


class MoveStore(Protocol):
    """What a move does to the old and the new place of a partition.

    A call goes to the place in its `spot`, even if that place has given the partition away.
    """

    async def close_place(self, partition: int, version: int, to: str) -> Remains:
        """Give the partition away to `to`, unless this place holds parts that have not ended.

        From then on the place refuses all calls whose spot is not newer than `version`.
        """

    async def prepare(self, partition: int, version: int) -> int:
        """Make the place ready to get the partition, and delete remains of an earlier stay there.

        Returns the newest move that the place was prepared for; -1 if the place holds parts.
        """

    async def take_over(self, source: int, target: int, version: int) -> None:
        """Copy the figures of the old place (`source`) to the new place (`target`).

        These are the partition's running totals and the measured times of actions.
        """

    async def finished(self, partition: int, start: int, limit: int) -> list[str]:
        """Return a page of the ids of parts that have ended. An id is empty if the part is gone."""

    async def copy(self, source: int, target: int, version: int, part: str) -> None:
        """Copy a part that has ended, unless the new place has it."""
