"""botocore's chain is asked once a minute, beside the calls; meanwhile the last ones serve."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest

from heatsink.errors import InvalidSetting, NoAccess, Unavailable
from heatsink.stores.dynamodb.client import ASK_EVERY_S, ChainCredentials
from heatsink.stores.dynamodb.wire.signing import Credentials
from heatsink.testing import ManualClock
from tests.waiting import PATIENCE_S


class Chain:
    """What botocore's session finds. Each time it is asked it has other credentials."""

    def __init__(self) -> None:
        self.asked = 0
        self.failure: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def get_frozen_credentials(self) -> SimpleNamespace:
        self.asked += 1
        assert self.may_answer.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        n = self.asked
        return SimpleNamespace(access_key=f"AKID{n}", secret_key=f"secret {n}", token=f"token {n}")


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> Chain:
    made = Chain()
    find(monkeypatch, made)
    return made


def find(monkeypatch: pytest.MonkeyPatch, found: Chain | None) -> None:
    def get_credentials(_: Any) -> Chain | None:
        return found

    monkeypatch.setattr(botocore.session.Session, "get_credentials", get_credentials)


@pytest.fixture
def credentials(chain: Chain, clock: ManualClock) -> ChainCredentials:  # noqa: ARG001
    return ChainCredentials(clock)


def numbered(n: int) -> Credentials:
    return Credentials(f"AKID{n}", f"secret {n}", f"token {n}")


async def renewal(credentials: ChainCredentials) -> None:
    """A renewal goes on beside the calls: wait for it."""
    assert credentials._asking is not None
    await asyncio.wait([credentials._asking])


async def test_the_chain_is_asked_once_a_minute(
    credentials: ChainCredentials, chain: Chain, clock: ManualClock
) -> None:
    for _ in range(5):
        assert await credentials.get() == numbered(1)
        await clock.advance(ASK_EVERY_S / 6)
    assert chain.asked == 1


async def test_callers_at_the_start_share_one_question(
    credentials: ChainCredentials, chain: Chain
) -> None:
    got = await asyncio.gather(*(credentials.get() for _ in range(10)))
    assert got == [numbered(1)] * 10
    assert chain.asked == 1


async def test_renewed_credentials_are_used(
    credentials: ChainCredentials, chain: Chain, clock: ManualClock
) -> None:
    await credentials.get()
    for n in (2, 3):
        await clock.advance(ASK_EVERY_S)
        await credentials.get()
        await renewal(credentials)
        assert await credentials.get() == numbered(n)
    assert chain.asked == 3


async def test_nobody_waits_for_a_renewal(
    credentials: ChainCredentials, chain: Chain, clock: ManualClock
) -> None:
    await credentials.get()
    await clock.advance(ASK_EVERY_S)
    chain.may_answer.clear()
    assert await credentials.get() == numbered(1)
    chain.may_answer.set()
    await renewal(credentials)
    assert await credentials.get() == numbered(2)


async def test_a_renewal_that_takes_long_is_not_asked_for_again(
    credentials: ChainCredentials, chain: Chain, clock: ManualClock
) -> None:
    await credentials.get()
    chain.may_answer.clear()
    for _ in range(3):
        await clock.advance(ASK_EVERY_S)
        assert await credentials.get() == numbered(1)
    chain.may_answer.set()
    await renewal(credentials)
    assert chain.asked == 2


async def test_a_failing_renewal_keeps_the_old_ones_until_the_next(
    credentials: ChainCredentials, chain: Chain, clock: ManualClock
) -> None:
    await credentials.get()
    chain.failure = RuntimeError("the metadata service is down")
    await clock.advance(ASK_EVERY_S)
    await credentials.get()
    await renewal(credentials)
    assert await credentials.get() == numbered(1)
    assert chain.asked == 2
    chain.failure = None
    await clock.advance(ASK_EVERY_S)
    await credentials.get()
    await renewal(credentials)
    assert await credentials.get() == numbered(3)


async def test_a_start_without_credentials_may_be_tried_again_at_once(
    credentials: ChainCredentials, chain: Chain
) -> None:
    chain.failure = RuntimeError("the metadata service is down")
    with pytest.raises(Unavailable, match=r"credentials \(the metadata service is down\)"):
        await credentials.get()
    chain.failure = None
    assert await credentials.get() == numbered(2)


async def test_a_caller_that_is_cancelled_does_not_end_the_question(
    credentials: ChainCredentials, chain: Chain
) -> None:
    chain.may_answer.clear()
    impatient = asyncio.ensure_future(credentials.get())
    patient = asyncio.ensure_future(credentials.get())
    await asyncio.sleep(0)
    impatient.cancel()
    chain.may_answer.set()
    assert await patient == numbered(1)
    assert chain.asked == 1


async def test_a_failure_that_nobody_waits_for_is_not_left_lying_about(
    credentials: ChainCredentials, chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    chain.failure = RuntimeError("the metadata service is down")
    chain.may_answer.clear()
    impatient = asyncio.ensure_future(credentials.get())
    await asyncio.sleep(0)
    impatient.cancel()
    chain.may_answer.set()
    await renewal(credentials)
    credentials._asking = None
    gc.collect()
    assert not caplog.records


def test_no_credentials_at_all_say_where_to_put_some(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    find(monkeypatch, None)
    with pytest.raises(InvalidSetting) as caught:
        ChainCredentials(clock)
    assert "no AWS credentials found: set AWS_ACCESS_KEY_ID" in str(caught.value)
    assert "?profile=" in str(caught.value)


def test_a_profile_that_is_not_there_points_at_the_url(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidSetting, match=r"\(staging\).*check profile= in the url"):
        ChainCredentials(clock, "staging")


def test_half_of_a_pair_names_the_other_half(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ours")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(NoAccess, match=r"cannot be read \(.*missing: AWS_SECRET_ACCESS_KEY\)"):
        ChainCredentials(clock)


def test_a_file_that_does_not_parse_is_named(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "config").write_text("[default\nregion")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(NoAccess, match=r"cannot be read \(.*config\).*: check the AWS_"):
        ChainCredentials(clock)
