from __future__ import annotations

from collections.abc import Iterator

import pytest

from heatsink.primitives.clock import BELIEVE_S, SystemClock, now_ms, witness_of
from heatsink.registry.closed_time import StoreTime, Timekeeper, evidence_of
from heatsink.registry.decisions import Evidence, Verdict
from heatsink.testing import ManualClock

NOW_MS = 1_800_000_000_000
YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS, 5_001, -5_001])
def test_a_clock_that_is_far_off_is_replaced_by_the_stores(off_ms: int) -> None:
    time = Timekeeper()
    time.observe(NOW_MS + off_ms, NOW_MS, 100.0)
    assert (time.correction_ms, time.offset_ms) == (-off_ms, -off_ms)


@pytest.mark.parametrize("off_ms", [0, 4_000, -4_000])
def test_a_clock_that_is_a_little_off_is_used_as_it_is(off_ms: int) -> None:
    time = Timekeeper()
    time.observe(NOW_MS + off_ms, NOW_MS, 100.0)
    assert (time.correction_ms, time.offset_ms) == (0, -off_ms)


def test_a_jump_of_both_clocks_is_believed_only_when_it_lasts() -> None:
    """On one machine the store's clock is ours: nobody else can say that it is wrong."""
    time = Timekeeper()
    time.observe(NOW_MS, NOW_MS, 100.0)
    for second in range(1, int(BELIEVE_S)):
        wall_ms = NOW_MS + YEAR_MS + second * 1_000
        time.observe(wall_ms, wall_ms, 100.0 + second)
        assert wall_ms + time.correction_ms == NOW_MS + second * 1_000
    later_ms, later_s = NOW_MS + YEAR_MS + 60_000, 160.0
    time.observe(later_ms, later_ms, later_s)
    assert time.correction_ms == 0


def test_a_jump_that_is_taken_back_leaves_no_trace() -> None:
    time = Timekeeper()
    time.observe(NOW_MS, NOW_MS, 100.0)
    time.observe(NOW_MS + YEAR_MS, NOW_MS + YEAR_MS, 102.0)
    time.observe(NOW_MS + 4_000, NOW_MS + 4_000, 104.0)
    assert (time.correction_ms, time.offset_ms) == (0, 0)


# -- the time of a store without a clock -----------------------------------------------------

DAY_S = 86_400.0


class Process:
    """One process on a machine, and the evidence in the META that it shares with others."""

    evidence: Evidence | None = None

    def __init__(self, clock: ManualClock) -> None:
        self.time = StoreTime(clock, clock)

    def look(self) -> Verdict:
        """As the registry does ten times a second: who may testify does."""
        verdict = self.time.judge(Process.evidence)
        if verdict.testimony is not None:
            Process.evidence = verdict.testimony
        return verdict


@pytest.fixture
def known() -> Iterator[None]:
    """The store was used a moment ago, by a right clock."""
    clock = ManualClock()
    Process.evidence = evidence_of(clock, now_ms(clock))
    yield
    Process.evidence = None


async def watch(clock: ManualClock, process: Process, seconds: int) -> list[Verdict]:
    verdicts = []
    for _ in range(seconds):
        verdicts.append(process.look())
        await clock.advance(1.0)
    return verdicts


def test_a_new_store_believes_who_founds_it() -> None:
    verdict = StoreTime(ManualClock(), ManualClock()).judge(None)
    assert (verdict.time_ms, verdict.is_due, verdict.doubt) == (NOW_MS, True, "")


@pytest.mark.usefixtures("known")
async def test_within_one_boot_a_wrong_clock_does_not_count_from_the_start() -> None:
    clock = ManualClock()
    await clock.advance(3.0)
    clock.set_wall(clock.now_s() + 2 * DAY_S)
    for n, verdict in enumerate(await watch(clock, Process(clock), 10)):
        assert verdict.time_ms == NOW_MS + 3_000 + 1_000 * n
        assert verdict.testimony is None
        assert "172,800 s ahead of the store's time" in verdict.doubt


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0])
async def test_a_step_of_the_machines_clock_is_believed_when_it_lasts(step_s: float) -> None:
    clock = ManualClock()
    process = Process(clock)
    await watch(clock, process, 5)
    clock.set_wall(clock.now_s() + step_s)
    assert all(verdict.doubt for verdict in await watch(clock, process, 10))
    assert [verdict.doubt for verdict in await watch(clock, process, 30)] == [""] * 30
    assert process.look().time_ms == now_ms(clock)


@pytest.mark.usefixtures("known")
async def test_a_step_that_is_taken_back_leaves_no_trace() -> None:
    clock = ManualClock()
    process = Process(clock)
    for _ in range(5):
        clock.set_wall(clock.now_s() + 2 * DAY_S)
        assert all(verdict.doubt for verdict in await watch(clock, process, 5))
        clock.set_wall(clock.now_s() - 2 * DAY_S)
        await watch(clock, process, 2)
    assert process.look() == Verdict(now_ms(clock), Process.evidence)


@pytest.mark.usefixtures("known")
async def test_a_synchronised_kernel_is_believed_at_once() -> None:
    clock = ManualClock()
    process = Process(clock)
    process.look()
    clock.set_wall(clock.now_s() + 3_600)
    clock.is_synchronised = True
    assert process.look().time_ms == now_ms(clock)
    clock.boot = "the next boot"
    assert process.look().time_ms == now_ms(clock)


@pytest.mark.usefixtures("known")
async def test_a_wrong_clock_is_not_believed_as_long_as_a_right_one_contradicts() -> None:
    right, wrong = ManualClock(), ManualClock()
    wrong.set_wall(wrong.now_s() + 2 * DAY_S)
    one, other = Process(right), Process(wrong)
    for second in range(120):
        if second % 3 == 0:
            one.look()
        assert other.look().doubt
        await right.advance(1.0)
        await wrong.advance(1.0)
    assert {verdict.doubt for verdict in (await watch(wrong, other, 30))[-10:]} == {""}


@pytest.mark.usefixtures("known")
async def test_a_machine_that_slept_has_the_time_at_once() -> None:
    """Its boot clock counted on."""
    clock = ManualClock()
    process = Process(clock)
    process.look()
    await clock.advance(8 * 3_600.0)
    assert process.look() == Verdict(now_ms(clock), evidence_of(clock, now_ms(clock)), True)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("boot", ["the next boot", ""])
async def test_after_another_boot_a_clock_is_believed_when_nobody_objects(boot: str) -> None:
    clock = ManualClock()
    clock.boot = boot
    clock.set_wall(clock.now_s() + 8 * 3_600)
    process = Process(clock)
    for n, verdict in enumerate(await watch(clock, process, 10)):
        assert verdict.doubt
        assert verdict.time_ms == NOW_MS + 1_000 * n  # it cannot be earlier
    assert process.look().time_ms == now_ms(clock)


@pytest.mark.usefixtures("known")
async def test_after_another_boot_what_a_live_process_says_is_enough() -> None:
    one, other = ManualClock(), ManualClock()
    one.boot = other.boot = "the next boot"
    one.set_wall(one.now_s() + 8 * 3_600)
    await watch(one, Process(one), 11)
    await other.advance(11.0)
    other.set_wall(one.now_s() + 2 * DAY_S)
    assert Process(other).look().time_ms == now_ms(one)


def test_this_machine_is_a_witness() -> None:
    clock = SystemClock()
    assert witness_of(clock) is clock
    assert clock.boot_s() > 0
    assert clock.boot_id() == SystemClock().boot_id()
    kernel_s = clock.synchronised_s()
    assert kernel_s is None or abs(kernel_s - clock.now_s()) < 1


def test_a_clock_that_is_no_witness_counts_as_of_an_unknown_boot() -> None:
    class Plain:
        now_s, monotonic_s, sleep = SystemClock.now_s, SystemClock.monotonic_s, SystemClock.sleep

    witness = witness_of(Plain())
    assert (witness.boot_id(), witness.synchronised_s()) == ("", None)


def test_a_jump_since_the_last_look_does_not_move_what_cannot_come_back() -> None:
    time = Timekeeper()
    time.observe(NOW_MS, NOW_MS, 100.0)
    assert time.steady_ms(100.25) == NOW_MS + 250
