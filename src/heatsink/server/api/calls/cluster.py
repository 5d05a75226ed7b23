"""The handler of `/v1/cluster`: the heat of a watched cluster, by slot and node."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import groupby

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.cluster.load import NodeUsage, usage_of
from heatsink.cluster.policy import SlotMove
from heatsink.cluster.slots import SLOTS
from heatsink.server.api.requests import ApiCall, Reply
from heatsink.server.api.shapes import NoQuery, Time

MOVES = 30


class ClusterNodeLine(msgspec.Struct, frozen=True):
    """A primary. `ratio` is its load ÷ the mean; `ratio_before` is the ratio without any move."""

    node: str
    replicas: int
    slots: int
    slots_before: int
    used: float
    network_s: float
    memory: int
    ratio: float
    ratio_before: float


class SlotRange(msgspec.Struct, frozen=True):
    """Neighbouring slots with one owner. `node` is the index of the owner in the list of nodes."""

    first: int
    last: int
    node: int


class ClusterMoveLine(msgspec.Struct, frozen=True):
    """A migration of slots. `error` says why it failed; it is empty if it did not.

    `size` is how many bytes the target has received. Before the end, it is the estimated size of
    the slots' data.
    """

    slots: list[int]
    source: str
    target: str
    size: int
    reason: str
    time: Time | None = None
    took_s: float | None = None
    error: str = ""


class ClusterAnswer(msgspec.Struct, frozen=True):
    """The watched cluster. Only the leader knows it: elsewhere `nodes` is empty.

    `heat` has the CPU time of each slot, with reads on replicas, in microseconds a second. `owners`
    has the present owners of the slots. `owners_before` has the owners before the first of `moves`.
    `trouble` says why nothing is known, or why no slot can move. `why` says why no slot moves if
    all is well.
    """

    watched: str
    leads: bool
    balances: bool
    trouble: str = ""
    why: str = ""
    ceiling: str = ""
    busiest_to_mean: float | None = None
    busiest_to_mean_before: float | None = None
    planned_to_mean: float | None = None
    nodes: list[ClusterNodeLine] = []
    heat: list[int] = []
    owners: list[SlotRange] = []
    owners_before: list[SlotRange] = []
    running: ClusterMoveLine | None = None
    moves: list[ClusterMoveLine] = []


async def cluster(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(cluster_of(call.service.hs))


def cluster_of(hs: Heatsink) -> ClusterAnswer:
    watch, leads = hs.cluster_watch, hs.status().leads
    if watch is None:
        return ClusterAnswer("", leads, False)
    about = ClusterAnswer(watch.nodes.shown, leads, watch.settings.balance, watch.trouble)
    state = watch.balancer.state
    if state is None or not leads:
        return about
    load, plan = state.load, state.plan
    now, before = usage_of(load), {each.id: each for each in usage_of(load, state.before)}
    names = {node.id: node.address for node in load.nodes}
    places = {node.id: place for place, node in enumerate(now)}
    heat = [0] * SLOTS
    for slot in load.slots:
        heat[slot.slot] = round(1e6 * slot.heat)

    def line(move: SlotMove) -> ClusterMoveLine:
        return ClusterMoveLine(
            slots=list(move.slots),
            source=names.get(move.source, move.source),
            target=names.get(move.target, move.target),
            size=move.size,
            reason=move.reason,
        )

    running = watch.balancer.running
    return msgspec.structs.replace(
        about,
        trouble=watch.trouble or state.trouble,
        why=plan.why,
        ceiling=plan.ceiling.words if plan.ceiling else "",
        busiest_to_mean=max((each.ratio for each in now), default=1.0),
        busiest_to_mean_before=max((each.ratio for each in before.values()), default=1.0),
        planned_to_mean=plan.after,
        nodes=[_node_line(each, before[each.id]) for each in now],
        heat=heat,
        owners=_ranges({slot.slot: slot.node for slot in load.slots}, places),
        owners_before=_ranges(state.before, places),
        running=line(running) if running else None,
        moves=[
            msgspec.structs.replace(
                line(each.job),
                time=datetime.fromtimestamp(each.at_s, UTC),
                took_s=round(each.took_s, 3),
                error=each.error,
                size=each.job.size if each.error else each.moved,
            )
            for each in reversed(state.reports[-MOVES:])
        ],
    )


def _node_line(now: NodeUsage, before: NodeUsage) -> ClusterNodeLine:
    return ClusterNodeLine(
        node=now.address,
        replicas=now.replicas,
        slots=now.slots,
        slots_before=before.slots,
        used=now.used,
        network_s=now.net_s,
        memory=now.memory,
        ratio=now.ratio,
        ratio_before=before.ratio,
    )


def _ranges(owners: Mapping[int, str], places: Mapping[str, int]) -> list[SlotRange]:
    """Join neighbouring slots with one owner to ranges. `places` has the number of each node.

    Slots of a node that has left the cluster are left out.
    """
    known = sorted((slot, places[id]) for slot, id in owners.items() if id in places)
    found = []
    for (_, node), group in groupby(
        enumerate(known), key=lambda each: (each[1][0] - each[0], each[1][1])
    ):
        slots = [slot for _, (slot, _) in group]
        found.append(SlotRange(slots[0], slots[-1], node))
    return found
