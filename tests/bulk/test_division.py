"""Which partitions members of the queue divide among themselves, and how."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.bulk.work.division import LENT, NOTICES, PLAIN, Division, Share
from heatsink.testing import ManualClock

MEMBER_S = 5.0
SIXTEEN = range(16)


class Fleet:
    """Members that announce what they have, and own what their shares allow."""

    def __init__(self, **actions: list[str]) -> None:
        self.clock = ManualClock()
        self.members = {
            name: Division(name, ["heatsink.next", *some], MEMBER_S, self.clock)
            for name, some in actions.items()
        }
        self.owned: dict[str, set[int]] = {name: set() for name in actions}

    def share(self, name: str) -> Share:
        offered = {word for each in self.members.values() for word in each.announced}
        return self.members[name].share(list(self.members), offered, SIXTEEN, self.owned[name])

    def turn(self) -> None:
        """Let each member renew its membership once."""
        for name, mine in self.owned.items():
            share = self.share(name)
            mine &= set(share.kept)
            free = set(SIXTEEN).difference(*self.owned.values())
            for wanted, most in ((share.called, share.most), (share.others, share.even)):
                for number in wanted:
                    if number in free and len(mine) < most:
                        mine.add(number)
                        free.remove(number)

    async def rest(self, seconds: float) -> None:
        for _ in range(int(seconds / MEMBER_S * 4)):
            await self.clock.advance(MEMBER_S / 4)
            self.turn()


async def test_members_with_the_same_actions_divide_evenly() -> None:
    fleet = Fleet(a=["mail"], b=["mail"], c=["mail"])
    await fleet.rest(10)
    assert sorted(map(len, fleet.owned.values())) == [5, 5, 6]


async def test_a_plain_member_owns_nothing_beside_one_with_actions() -> None:
    fleet = Fleet(plain=[], worker=["mail"])
    await fleet.rest(10)
    assert fleet.owned == {"plain": set(), "worker": set(SIXTEEN)}
    del fleet.members["worker"], fleet.owned["worker"]
    await fleet.rest(10)
    assert fleet.owned == {"plain": set(SIXTEEN)}


async def test_plain_members_alone_divide_evenly() -> None:
    fleet = Fleet(a=[], b=[])
    await fleet.rest(10)
    assert [len(mine) for mine in fleet.owned.values()] == [8, 8]


async def test_a_partition_goes_to_a_member_with_the_action_and_comes_back() -> None:
    fleet = Fleet(a=["mail"], b=["mail", "push"])
    await fleet.rest(10)
    number = min(fleet.owned["a"])
    assert fleet.members["a"].lacks(number, "push")
    await fleet.rest(3)
    assert (len(fleet.owned["a"]), number in fleet.owned["b"]) == (7, True)
    await fleet.rest(MEMBER_S * (NOTICES + 2))
    assert [len(mine) for mine in fleet.owned.values()] == [8, 8]


async def test_nobody_gives_a_partition_up_for_an_action_that_nobody_has() -> None:
    fleet = Fleet(a=["mail"], b=["mail"])
    await fleet.rest(10)
    before = set(fleet.owned["a"])
    assert not fleet.members["a"].lacks(min(before), "push")
    await fleet.rest(10)
    assert fleet.owned["a"] == before


async def test_one_new_member_gets_at_most_twice_its_share() -> None:
    fleet = Fleet(a=["mail"], b=["mail"], c=["mail"], new=["mail", "push"])
    await fleet.rest(10)
    most = 0
    for _ in range(60):
        for old in "abc":
            for number in fleet.owned[old]:
                fleet.members[old].lacks(number, "push")
        await fleet.rest(MEMBER_S / 4)
        most = max(most, len(fleet.owned["new"]))
    assert most == LENT * 4


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sets(st.sampled_from(["x", "y"])), min_size=1),
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(SIXTEEN)), max_size=30),
)
def test_every_partition_has_an_owner_again_once_no_item_waits(
    actions: dict[str, set[str]], met: list[tuple[str, int]]
) -> None:
    async def play() -> None:
        fleet = Fleet(**{name: sorted(some) for name, some in actions.items()})
        await fleet.rest(10)
        for name, number in met:
            if number in fleet.owned.get(name, ()):
                for action in {"x", "y"} - actions[name]:
                    fleet.members[name].lacks(number, action)
            fleet.turn()
        await fleet.rest(MEMBER_S * (NOTICES + 4))
        owned = [number for mine in fleet.owned.values() for number in mine]
        assert sorted(owned) == list(SIXTEEN)
        dividing = [len(fleet.owned[name]) for name, some in actions.items() if some]
        assert max(dividing, default=0) - min(dividing, default=0) <= 1

    asyncio.run(play())


@pytest.mark.parametrize("name", ["unpartitioned/w", "w"])
def test_consumers_of_the_unpartitioned_queue_divide_by_themselves(name: str) -> None:
    division = Division(name, ["mail"], MEMBER_S, ManualClock())
    share = division.share(["unpartitioned/w", "w"], ["mail"], SIXTEEN, ())
    assert share.even == 16
    assert not [word for word in division.announced if word.startswith(PLAIN)]
