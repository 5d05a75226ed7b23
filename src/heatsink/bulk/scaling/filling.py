"""Sharing a cap: everybody gets what it asks for, or its share by weight, whichever is less."""

from __future__ import annotations

from collections.abc import Mapping


def water_fill(wanted: Mapping[int, int], weights: Mapping[int, float], cap: int) -> dict[int, int]:
    """Whole shares of at most `cap` in all; what some do not need goes to the others.

    Everybody gets at least one, even beyond the cap: a partition without a worker stands still.
    """
    if sum(wanted.values()) <= cap:
        return dict(wanted)
    given = {name: min(want, 1) for name, want in wanted.items()}
    left = cap - sum(given.values())
    open_names = sorted(name for name in wanted if wanted[name] > given[name])
    while left > 0 and open_names:
        total = sum(_weight(weights, name) for name in open_names)
        per_weight = left / total
        for name in open_names:
            more = int(per_weight * _weight(weights, name))
            more = min(more, wanted[name] - given[name], left)
            given[name] += more
            left -= more
        still = [name for name in open_names if wanted[name] > given[name]]
        if still == open_names:
            return _with_rest(given, wanted, weights, left)
        open_names = still
    return given


def _with_rest(
    given: dict[int, int], wanted: Mapping[int, int], weights: Mapping[int, float], left: int
) -> dict[int, int]:
    """What no share was large enough for goes one by one to who is furthest behind."""
    for _ in range(left):
        behind = [name for name in given if given[name] < wanted[name]]
        if not behind:
            break
        given[min(behind, key=lambda name: (given[name] / _weight(weights, name), name))] += 1
    return given


def _weight(weights: Mapping[int, float], name: int) -> float:
    return max(weights.get(name, 0.0), 1e-9)
