"""`heatsink verify` on the emulator: all assumptions hold, and a planted difference is found."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from heatsink.cli import main
from heatsink.emulator.engine import Engine
from heatsink.emulator.operations import reads, writes
from heatsink.emulator.rows import StoredItem
from heatsink.emulator.settings import EngineSettings
from heatsink.stores.dynamodb.verify import indexes
from heatsink.stores.dynamodb.verify.assumptions import ALL, cost_of, estimate
from heatsink.stores.dynamodb.verify.ground import Ground
from heatsink.stores.dynamodb.wire.errors import Throttled, TransactionCanceled
from heatsink.testing.dynamodb import LocalDynamoDB
from tests.waiting import until

pytestmark = pytest.mark.server("the emulator listens")


@pytest.fixture
def limited() -> Iterator[LocalDynamoDB]:
    """An emulator with DynamoDB's limits."""
    with LocalDynamoDB(EngineSettings(port=0)) as dynamodb:
        yield dynamodb


def run(dynamodb: LocalDynamoDB, *flags: str) -> Result:
    url = f"dynamodb://any?endpoint={dynamodb.url}"
    return CliRunner().invoke(main, ["verify", url, "--json", *flags])


def states(result: Result) -> dict[str, str]:
    found = json.loads(result.stdout)["findings"]
    return {one["assumption"]: one["state"] for one in found}


def test_the_emulator_does_all_that_heatsink_assumes(limited: LocalDynamoDB) -> None:
    result = run(limited)
    assert result.exit_code == 0, result.output
    assert set(states(result).values()) == {"same"}
    assert len(states(result)) == len(ALL)
    assert limited.client().list_tables()["TableNames"] == []


def test_a_second_run_on_the_same_endpoint_finds_no_difference(limited: LocalDynamoDB) -> None:
    for _ in range(2):
        found = states(run(limited, "--max-cost", "0.01"))
        assert found["idempotency tokens"] == "same"
        assert "different" not in found.values()


def test_tokens_come_from_the_random_source_and_differ() -> None:
    grounds = [Ground(None, None, Random(seed), 1.0) for seed in (1, 1, 2)]  # type: ignore[arg-type]
    first, same, other = (ground.token() for ground in grounds)
    assert first == same != other
    assert grounds[0].token() != first


def test_a_narrow_terminal_shows_a_difference_in_full(
    limited: LocalDynamoDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_reasons(monkeypatch)
    url = f"dynamodb://any?endpoint={limited.url}"
    words = ["verify", url, "--max-cost", "0.01"]
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, words)
    assert result.exit_code == 1
    assert max(map(len, result.stdout.partition("different: ")[0].splitlines())) <= 80
    assert "Throu…" not in result.stdout
    seen = "  observed: TransactionCanceledException, without Item, nothing written\n"
    assert f"different: cancellation reasons\n{seen}  Heatsink assumes: one reason" in result.stdout


def cut_later(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reads, "PAGE_BYTES_MAX", 2 * 1_024 * 1_024)


def larger_items(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writes, "ITEM_BYTES_MAX", 500 * 1_024)


def another_error(patch: pytest.MonkeyPatch) -> None:
    body = Throttled.body
    patch.setattr(Throttled, "body", lambda self: {**body(self), "__type": "x#LimitExceeded"})


def no_reasons(patch: pytest.MonkeyPatch) -> None:
    body = TransactionCanceled.body
    patch.setattr(
        TransactionCanceled, "body", lambda self: {**body(self), "CancellationReasons": []}
    )


def denied_scans(patch: pytest.MonkeyPatch) -> None:
    answer = Engine.answer
    denied = b'{"__type":"com.amazon.coral.service#AccessDeniedException","Message":"not scans"}'

    def refuse(self: Engine, target: str, body: bytes) -> tuple[int, bytes]:
        return (400, denied) if target.endswith(".Scan") else answer(self, target, body)

    patch.setattr(Engine, "answer", refuse)


def items_made_by_removals(patch: pytest.MonkeyPatch) -> None:
    new = writes.PreparedWrite._new

    def made(self: writes.PreparedWrite, old: StoredItem | None) -> StoredItem | None:
        found = new(self, old)
        return StoredItem(self.target, 2) if found is None and self.verb == "update" else found

    patch.setattr(writes.PreparedWrite, "_new", made)


def iterators_that_name_no_table(patch: pytest.MonkeyPatch) -> None:
    send = Ground.stream

    async def stream(self: Ground, operation: str, **payload: Any) -> Any:
        given = payload.get("ShardIterator", "")
        if given.startswith("opaque:"):
            payload["ShardIterator"] = given.removeprefix("opaque:")
        reply = await send(self, operation, **payload)
        for field in ("ShardIterator", "NextShardIterator"):
            if reply.body.get(field):
                reply.body[field] = f"opaque:{reply.body[field]}"
        return reply

    patch.setattr(Ground, "stream", stream)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (cut_later, {"pages of 1 MB"}),
        (larger_items, {"sizes of keys and items"}),
        (another_error, {"throttled writes and bursts", "hot key of an on-demand table"}),
        (no_reasons, {"cancellation reasons", "throttled transactions"}),
        (denied_scans, {"permissions"}),
        (items_made_by_removals, {"removals from a missing item"}),
        (iterators_that_name_no_table, {"iterators of a stream"}),
    ],
)
def test_a_planted_difference_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    found: set[str],
    limited: LocalDynamoDB,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    result = run(limited)
    assert result.exit_code == 1
    assert {name for name, state in states(result).items() if state == "different"} >= found
    assert limited.client().list_tables()["TableNames"] == []


def test_an_index_that_lags_is_waited_for_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_indexes = {one.name for one in indexes.ASSUMPTIONS}
    with LocalDynamoDB(EngineSettings(port=0, index_lag_s=0.1)) as dynamodb:
        found = states(run(dynamodb, "--max-cost", "0.01"))
        assert {found[name] for name in of_indexes} == {"same"}
        monkeypatch.setattr(indexes, "LAG_S_MAX", 0.0)
        found = states(run(dynamodb, "--max-cost", "0.01"))
        assert found["lag of a global index"] == "different"


def test_checks_above_the_cap_are_left_out_and_named(limited: LocalDynamoDB) -> None:
    plan = estimate(0.05)
    assert 0 < len(plan.checks) < len(ALL)
    assert plan.dollars == pytest.approx(sum(map(cost_of, plan.checks)))
    assert plan.dollars <= 0.05
    result = run(limited, "--max-cost", "0.05")
    assert result.exit_code == 0
    unknown = {name for name, state in states(result).items() if state == "unknown"}
    assert unknown == {one.name for one in plan.left_out}


def test_the_cap_also_stops_checks_that_cost_more_than_estimated(
    limited: LocalDynamoDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsink.stores.dynamodb.verify.ground.WRITE_DOLLARS", 1.0)
    result = run(limited, "--max-cost", "0.4")
    assert "unknown" in states(result).values()
    assert limited.client().list_tables()["TableNames"] == []


def test_tables_of_a_killed_run_are_named_and_cleaned(limited: LocalDynamoDB) -> None:
    client: Any = limited.client()
    for name in ("heatsink-verify-0-left", "orders"):
        client.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "p", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "p", "AttributeType": "S"}],
        )
    assert json.loads(run(limited).stdout)["left"] == ["heatsink-verify-0-left"]
    run(limited, "--clean")
    assert client.list_tables()["TableNames"] == ["orders"]


AWS, ELSEWHERE = "region=eu-west-1", "endpoint=http://dynamodb.test:8000"
HERE = "endpoint=http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("place", "cost"), [(AWS, "at most about 0."), (ELSEWHERE, "at most"), (HERE, "nothing")]
)
def test_at_a_terminal_it_asks_before_it_begins(place: str, cost: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "heatsink", "verify", f"dynamodb://any?{place}"]
    os.write(ours, b"n\n")
    ran = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=False)
    os.close(ours)
    os.close(theirs)
    assert ran.returncode == 1
    assert f"cost {cost}" in ran.stderr
    assert "Go ahead?" in ran.stderr


@pytest.mark.parametrize("place", [AWS, ELSEWHERE])
def test_without_a_terminal_it_spends_money_only_with_yes(place: str) -> None:
    result = CliRunner().invoke(main, ["verify", f"dynamodb://any?{place}"], input="y\n")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "cost at most about 0." in result.stderr
    assert "add --yes" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_deletes_the_tables(number: signal.Signals) -> None:
    with LocalDynamoDB(EngineSettings(port=0, latency_s=0.02)) as dynamodb:
        client: Any = dynamodb.client()
        url = f"dynamodb://any?endpoint={dynamodb.url}"
        command = [sys.executable, "-m", "heatsink", "verify", url, "--yes"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            until(lambda: client.list_tables()["TableNames"])
            process.send_signal(number)
        assert process.returncode == 128 + number
        assert client.list_tables()["TableNames"] == []
