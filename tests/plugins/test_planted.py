"""Hunts for planted bugs: where they begin, what they say, and how their seeds are renewed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import planted
from tests.planted import HUNTS, STALE, Bugs, Hunt, known_seeds
from tests.simulation import renew
from tests.simulation.renew import Found, Renewal, load_hunts

NAME = "a hunt of a test"
FOUND_BY = {5, 7}
planted_now: list[str] = []
bugs = Bugs()


class Bitten(Exception):
    """What the simulation of these tests raises when it finds the bug."""


@bugs
def a_bug() -> Iterator[None]:
    planted_now.append("a bug")
    yield
    planted_now.clear()


def simulate(seed: int) -> None:
    if planted_now and seed in FOUND_BY:
        raise Bitten


@pytest.fixture
def seeds_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "seeds.json"
    file.write_text("{}")
    monkeypatch.setattr(planted, "SEEDS_FILE", file)
    monkeypatch.setattr(renew, "SEEDS_FILE", file)
    return file


@pytest.fixture
def hunt(request: pytest.FixtureRequest) -> Iterator[Hunt]:
    request.getfixturevalue("seeds_file")
    yield Hunt(NAME, bugs, simulate, Bitten, seeds=10)
    del HUNTS[NAME]


def know(file: Path, seed: int) -> None:
    file.write_text(json.dumps({NAME: {"a_bug": seed}}))


def test_a_known_seed_is_played_first_and_nothing_is_said(hunt: Hunt, seeds_file: Path) -> None:
    know(seeds_file, 7)
    hunt.must_find("a_bug")
    assert STALE == []
    assert planted_now == []


def test_a_stale_seed_is_said_with_the_one_that_finds_the_bug_now(hunt: Hunt) -> None:
    hunt.must_find("a_bug")
    said = STALE.copy()
    STALE.clear()  # or the end of all tests would show it
    assert said == [f"{NAME}: a_bug: seed 5 found it, after 5 others from 0 on"]


def test_a_bug_that_no_seed_finds_fails_and_says_what_to_look_at(
    hunt: Hunt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.plugins.test_planted.FOUND_BY", set())
    with pytest.raises(pytest.fail.Exception, match="none of 10 seeds found this planted bug"):
        hunt.must_find("a_bug")


@pytest.mark.usefixtures("hunt")
def test_a_renewal_writes_the_seeds_and_forgets_bugs_that_are_gone(seeds_file: Path) -> None:
    seeds_file.write_text(json.dumps({NAME: {"a bug of before": 3}, "no hunt": {"x": 1}}))
    found = renew.renew((NAME, "a_bug"), more=0)
    assert [each.seed for each in found.found] == [5]
    assert [each.seed for each in renew.renew((NAME, "a_bug"), more=3).found] == [5, 7]
    renew.write([found])
    assert known_seeds()[NAME] == {"a_bug": 5}
    assert "no hunt" not in known_seeds()


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ([Found(3, 1.0), Found(4, 0.9)], 3),  # as good as the known one: no change
        ([Found(3, 1.0), Found(4, 0.5)], 4),
        ([Found(4, 0.5), Found(6, 0.4)], 6),
    ],
)
def test_the_cheapest_seed_replaces_the_known_one_only_if_it_is_clearly_cheaper(
    found: list[Found], best: int
) -> None:
    renewal = Renewal("a hunt", "a bug", 3, 9, found)
    assert renewal.best is not None
    assert renewal.best.seed == best
    assert Renewal("a hunt", "a bug", 3, 9, []).best is None


def test_every_seed_in_the_file_is_of_a_bug_that_exists() -> None:
    load_hunts()
    for name, seeds in known_seeds().items():
        assert seeds.keys() <= HUNTS[name].bugs.keys()
