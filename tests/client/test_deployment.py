"""Settings of the whole deployment: set in one process, in force in all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import heatsink
from heatsink import BucketRules, Event, Heatsink, Hook
from heatsink.bulk import Actions, BulkSettings, Context
from heatsink.bulk.scaling.load import WorkerRules
from heatsink.client.deployment import setting_names
from heatsink.errors import InvalidSetting, NotFound
from tests.waiting import soon


class Heard(Hook):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_event(self, event: Event) -> None:
        if event.name == "settings.differ":
            self.warnings.append(event.message)


@asynccontextmanager
async def fleet(tmp_path: Path, *options: dict[str, Any]) -> AsyncIterator[list[Heatsink]]:
    """One process for each dictionary of options, on one store."""
    url = f"sqlite:///{tmp_path}/fleet.db"
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(heatsink.connect(url, **each)) for each in options]


async def test_a_setting_is_in_force_everywhere(tmp_path: Path) -> None:
    async with fleet(tmp_path, {}, {"coordinate": False}) as (one, other):
        await one.settings.set("rules.buckets_max", 3, reason="reads are dear", by="ops")
        await soon(lambda: other.rules.buckets_max == 3)
        found = other.settings.get("rules.buckets_max")
        assert (found.value, found.source, found.by) == (3, "deployment", "ops")
        assert (found.reason, found.default) == ("reads are dear", 64)
        await other.settings.unset("rules.buckets_max")
        await soon(lambda: one.rules.buckets_max == 64)
        assert one.settings.get("rules.buckets_max").source == "default"


async def test_the_leader_decides_by_what_is_set_while_it_runs(tmp_path: Path) -> None:
    """Two thousand writes in a second need three buckets of 800, and are cut to two."""
    async with fleet(tmp_path, {"window_s": 0.2}, {"coordinate": False, "window_s": 0.2}) as both:
        leader, app = both
        await app.settings.set("rules.buckets_max", 2, reason="a test")
        await soon(lambda: leader.parts.coordination.rules.buckets_max == 2)

        async def two_buckets() -> bool:
            app.record("conv", 2_000)
            return (await app.explain("conv")).buckets == 2

        await soon(two_buckets)
        layout = (await leader.explain("conv")).layout
        assert max(epoch.buckets for epoch in layout.epochs) == 2


async def test_windows_change_their_length_while_processes_run(tmp_path: Path) -> None:
    async with fleet(tmp_path, {}, {"coordinate": False}) as (leader, app):
        await app.settings.set("window_s", 0.2, reason="see bursts sooner")
        await app.settings.set("report_floor", 0.02, reason="a test")

        async def is_seen_in_short_windows() -> bool:
            app.record("conv", 5)  # below 10 % of a bucket's load, above 2 %
            hottest = await leader.hottest(5)
            return hottest.window_s == 0.2 and "conv" in [each.key for each in hottest.keys]

        await soon(is_seen_in_short_windows)


async def test_a_setting_outlives_every_process(tmp_path: Path) -> None:
    async with fleet(tmp_path, {}) as (first,):
        await first.settings.set("timelines.threshold", 500, reason="small homes")
    async with fleet(tmp_path, {}) as (second,):
        assert second.settings.get("timelines.threshold").value == 500
        (entry,) = await second.decisions(1)
        assert "setting timelines.threshold: set to 500 (small homes)" in str(entry)


async def test_the_process_that_founds_a_store_sets_its_settings(tmp_path: Path) -> None:
    founding: dict[str, Any] = {"rules.shrink": False, "workers.base": 2}
    async with fleet(tmp_path, {"settings": founding}) as (first,):
        assert first.rules.shrink is False
    heard = Heard()
    later = {"settings": {"rules.shrink": True}, "hooks": [heard]}
    async with fleet(tmp_path, later) as (second,):
        assert second.rules.shrink is False
        assert second.settings.get("workers.base").value == 2
    (warning,) = heard.warnings
    assert "settings has rules.shrink=True, but the deployment has False" in warning


async def test_a_process_with_another_value_says_so_once(tmp_path: Path) -> None:
    heard = Heard()
    other = {"rules": BucketRules(buckets_max=5), "hooks": [heard]}
    async with fleet(tmp_path, {}, other) as (first, second):
        await first.settings.set("rules.buckets_max", 3, reason="reads are dear")
        await soon(lambda: bool(heard.warnings))
        assert second.rules.buckets_max == 3
        assert second.settings.get("rules.buckets_max").local == 5
        await first.settings.set("rules.shrink", False, reason="keep")
        await soon(lambda: second.rules.shrink is False)
        await asyncio.sleep(0)
    (warning,) = heard.warnings
    assert "started with rules.buckets_max=5, but the deployment has 3" in warning


async def test_a_process_that_never_leads_is_told_that_its_rules_have_no_effect(
    tmp_path: Path,
) -> None:
    heard = Heard()
    app = {"coordinate": False, "rules": BucketRules(shrink=False), "hooks": [heard]}
    async with fleet(tmp_path, {}, app):
        await soon(lambda: bool(heard.warnings))
    (warning,) = heard.warnings
    assert warning.startswith("rules.shrink=False has no effect here")
    assert "heatsink settings set rules.shrink" in warning


async def test_tenants_weights_are_settings_too(tmp_path: Path) -> None:
    async with fleet(tmp_path, {}, {}) as (one, other):
        await one.settings.set("bulk.weights.acme", 2, reason="they pay for it")
        await soon(lambda: other.settings.get("bulk.weights.acme").value == 2.0)
        assert "bulk.weights.acme" in [setting.name for setting in other.settings.all()]


async def test_a_worker_follows_a_weight_that_another_process_sets(tmp_path: Path) -> None:
    """Running batches, too: a tenant of weight 4 gets four times the worker time."""
    ran: Counter[str] = Counter()
    actions = Actions()

    @actions.action("tag")
    async def tag(_item: int, context: Context) -> None:
        ran[context.tenant] += 1
        await asyncio.sleep(0.002)

    options: dict[str, Any] = {"bulk": BulkSettings(partitions=1, durability="relaxed")}
    async with fleet(tmp_path, options, options) as (one, other):
        worker = other.worker(actions, workers=2)
        running = asyncio.create_task(worker.run())
        for tenant in ("acme", "bob"):
            await one.bulk.submit("tag", range(20_000), tenant=tenant)
        ran.clear()  # the first tenant began alone
        await soon(lambda: ran.total() > 400)
        assert 0.7 < ran["acme"] / ran["bob"] < 1.4
        await one.settings.set("bulk.weights.acme", 4, reason="they pay for it")
        await soon(lambda: other.bulk.controls.weights == {"acme": 4.0})
        ran.clear()
        await soon(lambda: ran.total() > 400)  # claimed before the partition followed
        ran.clear()
        await soon(lambda: ran.total() > 1_000)
        assert 3.0 < ran["acme"] / ran["bob"] < 5.0
        worker.stop()
        await running


async def test_limits_are_settings_too(tmp_path: Path) -> None:
    async with fleet(tmp_path, {}, {}) as (one, other):
        await one.settings.set("bulk.limits.mail", "5, 20/s", reason="a slow week")
        await soon(lambda: other.settings.get("bulk.limits.mail").value == "5, 20/s")
        assert other.settings.now.bulk.limits == {"mail": "5, 20/s"}
        assert "bulk.limits.mail" in [setting.name for setting in other.settings.all()]
        await one.settings.set("bulk.limits.mail", 7, reason="a number is text, too")
        await soon(lambda: other.settings.get("bulk.limits.mail").value == "7")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rules.buckets_max", "many", "rules.buckets_max must be a whole number"),
        ("rules.buckets_max", 0, "buckets_max must be an int from 1 to 1,024"),
        ("rules.shrink", "perhaps", "rules.shrink must be true or false"),
        ("workers.base", 300, "workers_max must be an int from 300"),
        ("scaling", "magic", "scaling must be one of"),
        ("bulk.limits.mail", "fast", "rates must be texts like"),
        ("bulk.weights.acme", -1, "bulk.weights.acme must be a number"),
    ],
)
async def test_a_value_that_does_not_fit_is_refused(
    tmp_path: Path, name: str, value: object, words: str
) -> None:
    async with fleet(tmp_path, {}) as (one,):
        with pytest.raises(InvalidSetting, match=words):
            await one.settings.set(name, value, reason="a test")
        assert one.settings.get(name).source == "default"


async def test_text_is_converted(tmp_path: Path) -> None:
    async with fleet(tmp_path, {}) as (one,):
        await one.settings.set("rules.shrink", "false", reason="a test")
        await one.settings.set("rules.forecast_s", "1.5", reason="a test")
        assert (one.rules.shrink, one.rules.forecast_s) == (False, 1.5)


async def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    async with fleet(tmp_path, {}) as (one,):
        with pytest.raises(NotFound, match=r"did you mean .rules\.buckets_max."):
            await one.settings.set("rules.bucket_max", 3, reason="a test")


def test_every_number_of_the_scaling_policy_is_a_setting() -> None:
    assert {f"workers.{name}" for name in WorkerRules.__struct_fields__} <= {*setting_names()}


def test_the_client_without_asyncio_has_them_too(tmp_path: Path) -> None:
    with heatsink.connect_sync(f"sqlite:///{tmp_path}/one.db") as hs:
        hs.settings.set("rules.buckets_max", 7, reason="a test")
        assert hs.settings.get("rules.buckets_max").value == 7
