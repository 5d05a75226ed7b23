"""The lab in small: what its pages claim, on fewer items."""

from __future__ import annotations

from functools import partial

import pytest

from heatsink.lab import (
    celebrity,
    fairness,
    fleet,
    fleet_live,
    fleet_world,
    hot_key,
    isolation,
    partitions,
    rates,
    reads,
    scaling,
    steps,
)
from heatsink.spread.policy import BucketRules
from heatsink.testing import run_on_virtual_time
from heatsink.testing.redis import RedisServer
from tests.servers import real

pytestmark = pytest.mark.slow("experiments")

SPIKE = 20_000
LONG = pytest.mark.full("seconds of CPU, and the mechanism has tests of its own")
FIXED_S = SPIKE * scaling.SERVICE_S / scaling.WORKERS


@LONG
def test_littles_law_drains_the_spike_and_stays_near_what_the_service_takes() -> None:
    run = scaling.run_one("littles_law", scaling.ScalingSetup(SPIKE), seed=1)
    assert run.took_s <= 0.2 * FIXED_S
    assert run.peak <= 2 * scaling.FULL
    assert sum(moment.workers > 1.3 * scaling.FULL for moment in run.moments) <= 5


@pytest.mark.full("tests/bulk has the laws themselves")
def test_the_described_policy_stops_at_eight_times_its_base_and_others_at_the_maximum() -> None:
    run = scaling.run_one("time_decay", scaling.ScalingSetup(10_000), seed=1)
    assert run.peak == 64
    run = scaling.run_one("exponential", scaling.ScalingSetup(10_000), seed=1)
    assert run.peak == 256
    assert max(moment.p95_s for moment in run.moments) == pytest.approx(0.38 * 256 / 64)


def test_fixed_workers_take_as_long_as_can_be_computed() -> None:
    run = scaling.run_one("", scaling.ScalingSetup(2_000), seed=1)
    assert run.took_s == pytest.approx(2_000 * 0.38 / 8, rel=0.05)


@LONG
def test_a_small_batch_beside_a_giant_gets_its_share_at_once() -> None:
    alone, other, same = (
        run_on_virtual_time(fairness.small_batches(case, 20_000, seed=1, batches=5))
        for case in fairness.CASES
    )
    assert other.seconds[-1] <= 2.2 * alone.seconds[-1]
    assert same.seconds[-1] <= 1.5 * alone.seconds[-1]


@LONG
def test_a_large_batch_is_done_sooner_when_spread_and_small_ones_hardly_notice() -> None:
    together, spread = (
        run_on_virtual_time(isolation.beside_a_large_one(16, spread, 20_000, seed=1))
        for spread in (False, True)
    )
    assert (together.used, spread.used) == (1, 4)
    assert spread.large_per_s > 3.5 * together.large_per_s
    assert max(together.small.seconds[-1], spread.small.seconds[-1]) < 0.7


def test_declared_rates_cost_little_time_and_no_refusal() -> None:
    found = run_on_virtual_time(rates.declared(900, seed=1))
    assert found.took_s <= 1.06 * found.ideal_s
    assert found.throttles == 0


@LONG
def test_an_unknown_limit_is_found_by_the_whole_queue() -> None:
    seconds = run_on_virtual_time(rates.unknown(240.0, seed=1))
    settled = [second for second in seconds if 30 < second.time_s < 80]
    assert 0.94 < rates.held(settled) <= 1
    last = seconds[-1]
    assert last.refused < 0.02 * last.calls


@pytest.mark.parametrize(
    "experiment",
    [
        partial(fairness.experiment, giant=2_000, batches=3),
        partial(hot_key.one_run, "Heatsink", 100),
        pytest.param(partial(rates.experiment, jobs=300, seconds=90.0), marks=LONG),
        pytest.param(partial(scaling.experiment, items=1_000), marks=LONG),
    ],
    ids=("fairness", "hot-key", "rates", "scaling"),
)
def test_a_seed_gives_the_same_report(experiment: partial[object]) -> None:
    assert experiment(seed=3) == experiment(seed=3)


def test_a_key_that_goes_viral_is_spread_before_its_partition_refuses() -> None:
    plain, spread = (hot_key.one_run(case, 400, seed=1) for case in hot_key.CASES)
    assert plain.total("given_up") > 0.3 * plain.total("offered")
    assert spread.total("refused") == spread.total("given_up") == 0
    assert max(second.buckets for second in spread.seconds) >= 5
    assert spread.seconds[-1].buckets == 1, "it has cooled down"
    for run in (plain, spread):
        assert run.found == run.total("acknowledged")


def test_a_page_of_many_buckets_reads_few_rows_more() -> None:
    one, eight = (run_on_virtual_time(hot_key.page_cost(buckets, seed=1)) for buckets in (1, 8))
    assert (one.queries, one.rows) == (1, hot_key.PAGE + 1)
    assert eight.queries < 9
    assert eight.rows < 100


@LONG
def test_a_product_page_kept_near_costs_few_loads_and_nobody_waits() -> None:
    each, briefly, near = (
        run_on_virtual_time(reads.one_run(case, 1_000, seed=1)) for case in reads.CASES
    )
    assert each.late > 1_000, "the database cannot keep up"
    assert sum(near.loads) < sum(briefly.loads) < sum(each.loads)
    assert near.late < 50
    assert near.share(0.5) == 0.0


@LONG
def test_pulling_a_celebrity_saves_the_writes_and_the_waiting() -> None:
    pushed, pulled = (celebrity.one_run(case, 2_000, seed=1) for case in celebrity.CASES)
    assert pushed.writes == 10 * (2_000 + celebrity.FRIENDS)
    assert pulled.writes == 10 * celebrity.FRIENDS
    assert pulled.celebrity_s[0] < 1.0, "the first post waits until its author is pulled"
    assert max(pulled.celebrity_s[1:]) < 0.01
    assert max(pushed.celebrity_s) > 0.1


@LONG
def test_in_an_event_each_rule_finds_its_author() -> None:
    pushed, both = (
        {cost.author: cost for cost in celebrity.event(rules, 1_200, seed=1)}
        for rules in ("always pushed", "followers and cost decide")
    )
    assert [cost.mode for cost in pushed.values()] == ["push"] * 3
    assert pushed["commentator"].writes > 75 * celebrity.LISTENERS
    assert [cost.mode for cost in both.values()] == ["push", "pull", "pull"]
    assert both["celebrity"].explained.startswith("pull: followers: 1,200")
    assert both["commentator"].explained.startswith("pull: cost: ")
    assert both["commentator"].writes == both["celebrity"].writes == 0
    assert both["somebody"].writes == both["somebody"].posts * celebrity.FRIENDS


@LONG
def test_adaptive_capacity_stops_at_one_key_and_salt_needs_it_on_a_young_table() -> None:
    plain, adaptive, salted, both = (
        list(partitions.seconds(case, 2_700, seed=1))[-10:] for case in partitions.CASES
    )
    assert sum(second.others_throttled for second in plain) > 0
    assert sum(second.others_throttled for second in adaptive) == 0
    assert all(second.hot_throttled > 1_500 for second in adaptive)
    assert sum(second.throttled for second in salted) > 0
    assert salted[-1].buckets > 1
    assert sum(second.throttled for second in both) == 0


@LONG
@pytest.mark.parametrize("seed", [1, 2])
def test_more_buckets_lie_more_evenly_in_partitions_that_do_not_split(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why a throttled key grows beyond what its rate needs: coarse buckets share partitions."""
    monkeypatch.setattr(partitions, "RULES", BucketRules(buckets_max=8))
    coarse = list(partitions.seconds("salted", 2_400, seed))[-10:]
    monkeypatch.setattr(partitions, "RULES", BucketRules(buckets_max=64))
    fine = list(partitions.seconds("salted", 2_400, seed))[-10:]
    assert sum(second.throttled for second in coarse) > 1_000
    assert sum(second.throttled for second in fine) == 0
    assert 8 < fine[-1].buckets < 64


@LONG
def test_the_articles_steps_take_the_articles_times() -> None:
    times = [
        run_on_virtual_time(steps.play(step, 8_000, seed=1)).took_s / 60 for step in steps.STEPS
    ]
    fixed, doubled, one_queue, described, ours = times
    assert fixed == pytest.approx(25, abs=0.5)
    assert doubled == pytest.approx(14, abs=0.5)
    assert 3 < one_queue < 4
    assert 3 < described < 5, "reported: 4 minutes"
    assert ours < described


def test_buckets_follow_the_described_phases_with_one_to_spare() -> None:
    rates = hot_key.phases()
    buckets = hot_key.buckets_in(rates, BucketRules(cool_down_s=hot_key.PHASES_COOL_DOWN_S))
    needed = [BucketRules().buckets_for(rate) for rate in rates]
    assert all(have >= need for have, need in zip(buckets, needed, strict=True))
    phase_s = hot_key.PHASE_S + hot_key.RAMP_S - 1
    ends = [n * phase_s + hot_key.PHASE_S - 1 for n in range(4)]
    assert [needed[end] for end in ends] == [1, 2, 3, 5]
    assert all(buckets[end] - needed[end] in (0, 1) for end in ends)
    assert buckets[-1] == 1


def test_workers_in_whole_instances() -> None:
    run = run_on_virtual_time(steps.play(steps.INSTANCE_STEPS[0], 1_000, seed=1))
    assert {sum(moment.workers) % steps.INSTANCE for moment in run.moments} == {0}


def test_a_fleet_spreads_what_no_server_sees_often_and_keeps_its_leader() -> None:
    found = run_on_virtual_time(fleet_world.play(150, seed=1))
    assert len(found.spread_s) == fleet_world.HOT
    assert max(found.decided_s) <= 2.0
    assert max(found.spread_s) <= 3.0
    assert found.term_changes == 0
    assert found.commands < 2 * 150 + 100
    assert found.redis_in / 150 < 2_000, "bytes of a server a second"


def test_a_live_fleet_costs_what_the_simulation_says() -> None:
    servers = 60
    with real(RedisServer):
        live = fleet_live.run_live(seed=1, servers=servers)
    model = run_on_virtual_time(fleet_world.play(servers, seed=1))
    missed = [what for what in fleet.COMPARED if not fleet.is_within(what, model, live)]
    assert not missed, fleet._live_table(model, live).rows


def test_sizes_of_fleets_end_at_the_largest() -> None:
    assert fleet.sizes(10_000) == [100, 400, 1_000, 4_000, 10_000]
    assert fleet.sizes(50) == [50]
