"""Balancing a cluster's slots by heat, beside even slot counts and greedy bin packing.

Ten minutes of virtual time on six nodes, a window of ten seconds at a time, on the same loads: keys
with a Zipf distribution (s = 1.1), a hot spot that moves every two minutes, one hot key, and equal
keys, where nothing should move. `even counts` is the rule of `valkey-cli --cluster rebalance`: it
looks at the number of slots alone. `greedy` gives the busiest slot to the least busy node, again
and again, whenever the busiest node has 1.10 × the mean. A slot oscillates if it goes back to a
node that it had left. The mean of the last eight minutes counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import msgspec

from heatsink.cluster.load import ClusterLoad, NodeLoad, SlotLoad
from heatsink.cluster.policy import SlotPolicy
from heatsink.cluster.rules import SlotRules
from heatsink.cluster.slots import SLOTS

from .harness import Bench, Samples, Scale, Target, at_most, ratio_at_most

NODES = 6
WINDOW_S = 10.0
LASTS_S = 600.0
WARM_S = 120.0
SPOT_S = 120.0
USED = 0.4  # of the capacity of all nodes
HOT = 0.6  # of a core: 1.2 × the mean node, which no move can lower
NOISE = 0.05  # of the load of a slot, from window to window
KEYS = 40_000
KEY_BYTES = 10_000
TRIGGER = 1.10
Owners = list[int]
Method = Callable[[float, list[float], Owners], Mapping[int, int]]


class Load:
    """How busy each slot is, as a share of a core, by the time."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._rng = Random(seed)
        self.keys = [0] * SLOTS
        self._base = [0.0] * SLOTS
        for rank in range(KEYS):
            slot = self._rng.randrange(SLOTS)
            self.keys[slot] += 1
            self._base[slot] += 1 / (rank + 1) ** 1.1 if name in ("Zipf", "moving") else 1.0
        if name == "equal keys":
            self._base = [1.0] * SLOTS
        scale = USED * NODES / sum(self._base)
        self._base = [each * scale for each in self._base]
        self._spot = self._rng.randrange(SLOTS)
        if name == "one hot key":
            self._base[self._spot] += HOT

    def at(self, time_s: float) -> list[float]:
        base = self._base
        if self._name == "moving":
            turn = int(time_s / SPOT_S) * 2_731  # to slots of another node
            base = base[-turn % SLOTS :] + base[: -turn % SLOTS]
        return [each * self._rng.uniform(1 - NOISE, 1 + NOISE) for each in base]


class Ours:
    """The planner of `heatsink cluster balance --watch`."""

    def __init__(self, keys: list[int]) -> None:
        self._policy = SlotPolicy(SlotRules())
        self._keys = keys
        self._nodes = tuple(
            NodeLoad(f"{n}", f"10.0.0.{n}:6379", 1.0, 125e6, 10**9) for n in range(NODES)
        )

    def __call__(self, time_s: float, cpu: list[float], owners: Owners) -> Mapping[int, int]:
        slots = tuple(
            SlotLoad(slot, f"{owners[slot]}", cpu[slot], 0.0, 0.0, keys, keys * KEY_BYTES)
            for slot, keys in enumerate(self._keys)
        )
        plan = self._policy.decide(ClusterLoad(time_s, self._nodes, slots))
        moved = {slot: int(move.target) for move in plan.moves for slot in move.slots}
        self._policy.note(dict.fromkeys(moved, time_s))
        return moved


def even_counts(_: float, __: list[float], owners: Owners) -> Mapping[int, int]:
    """Move slots from nodes with too many to nodes with too few."""
    counts = [owners.count(node) for node in range(NODES)]
    moves: dict[int, int] = {}
    for slot, owner in enumerate(owners):
        target = counts.index(min(counts))
        if counts[owner] > SLOTS / NODES * 1.02 and counts[target] < SLOTS // NODES:
            counts[owner], counts[target] = counts[owner] - 1, counts[target] + 1
            moves[slot] = target
    return moves


def greedy(_: float, cpu: list[float], owners: Owners) -> Mapping[int, int]:
    """Pack all slots anew, the busiest first, each onto the node that is least busy."""
    if ratio(cpu, owners) <= TRIGGER:
        return {}
    used = [0.0] * NODES
    moves: dict[int, int] = {}
    for slot in sorted(range(SLOTS), key=lambda slot: -cpu[slot]):
        node = used.index(min(used))
        used[node] += cpu[slot]
        if owners[slot] != node:
            moves[slot] = node
    return moves


def ratio(cpu: list[float], owners: Owners) -> float:
    used = [0.0] * NODES
    for slot, owner in enumerate(owners):
        used[owner] += cpu[slot]
    return max(used) * NODES / sum(used)


class Outcome(msgspec.Struct):
    ratio: float = 0.0
    slots: int = 0
    size: float = 0.0
    oscillations: int = 0


def play(load: Load, method: Method) -> Outcome:
    """Play ten minutes. Moves are in force in the next window."""
    owners = [slot * NODES // SLOTS for slot in range(SLOTS)]
    left: dict[int, set[int]] = {}
    outcome, seen, time_s = Outcome(), list[float](), 0.0
    while time_s < LASTS_S:
        cpu = load.at(time_s)
        if time_s >= WARM_S:
            seen.append(ratio(cpu, owners))
        for slot, target in method(time_s, cpu, owners).items():
            outcome.slots += 1
            outcome.size += load.keys[slot] * KEY_BYTES / 1e6
            outcome.oscillations += target in left.get(slot, ())
            left.setdefault(slot, set()).add(owners[slot])
            owners[slot] = target
        time_s += WINDOW_S
    outcome.ratio = sum(seen) / len(seen)
    return outcome


def beside(name: str, ours: Samples, other: Samples) -> tuple[str, Samples] | None:
    return (name, other) if min(other) > 0 and len(ours) == len(other) else None


async def run(bench: Bench, scale: Scale) -> None:
    seeds = range(scale(2, 11))
    targets: dict[str, Target | None] = {
        "Zipf": at_most(1.25),
        "moving": ratio_at_most(1),
        "one hot key": None,
        "equal keys": at_most(1.1),
    }
    for name, target in targets.items():
        found: dict[str, list[Outcome]] = {"ours": [], "even counts": [], "greedy": []}
        for seed in seeds:
            ours = Ours(Load(name, seed).keys)
            methods: dict[str, Method] = {
                "ours": ours,
                "even counts": even_counts,
                "greedy": greedy,
            }
            for method, play_by in methods.items():
                found[method].append(play(Load(name, seed), play_by))
        show(bench, name, found, target)


def show(bench: Bench, name: str, found: dict[str, list[Outcome]], target: Target | None) -> None:
    ours, even, packed = found["ours"], found["even counts"], found["greedy"]
    ratios = [each.ratio for each in ours]
    for other, outcomes in (("even counts", even), ("greedy", packed)):
        theirs = [each.ratio for each in outcomes]
        aim = target if other == "even counts" else None
        bench.add(f"{name}: busiest ÷ mean, beside {other}", "", ratios, aim, (other, theirs))
    moved: tuple[tuple[str, str, Callable[[Outcome], float]], ...] = (
        ("slots moved", "", lambda each: float(each.slots)),
        ("data moved", "MB", lambda each: each.size),
    )
    for what, unit, of in moved:
        mine, theirs = [of(each) for each in ours], [of(each) for each in packed]
        bench.add(f"{name}: {what}", unit, mine, None, beside("greedy", mine, theirs))
    back = [float(each.oscillations) for each in ours]
    theirs = [float(each.oscillations) for each in packed]
    bench.add(f"{name}: oscillations", "", back, at_most(0), beside("greedy", back, theirs))
