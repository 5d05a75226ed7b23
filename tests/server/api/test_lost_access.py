"""A store that no longer lets the server in: the server's trouble, so that nobody drops a call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from heatsink import connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.clock import SystemClock
from heatsink.server.process import ServeSettings, running_app
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from tests.http_server import Reply, serving

MESSAGES = "/v1/conversations/conv/messages"
ENOUGH = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)


class Gate:
    """Before an engine, which takes any credentials: refuses whoever comes, once it is told to."""

    def __init__(self, engine: str, session: httpx.AsyncClient) -> None:
        self._engine = engine
        self._session = session
        self.refusal: str | None = None

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Reply:
        if self.refusal is not None:
            error = {"__type": f"com.amazon.coral.service#{self.refusal}", "message": "no"}
            return Reply(400, json.dumps(error).encode())
        target = {"X-Amz-Target": headers["x-amz-target"]}
        answer = await self._session.post(self._engine, content=body, headers=target)
        return Reply(answer.status_code, answer.content)


@asynccontextmanager
async def gated() -> AsyncIterator[tuple[Gate, str]]:
    async with running_engine(ENOUGH, SystemClock()) as engine, httpx.AsyncClient() as session:
        gate = Gate(engine, session)
        async with serving(gate.handle) as url:
            yield gate, url


@asynccontextmanager
async def served(endpoint: str, data: Path) -> AsyncIterator[httpx.AsyncClient]:
    await make_table(parse("messages", {"endpoint": endpoint}), SystemClock(), None)
    async with (
        connect(f"dynamodb://messages?endpoint={endpoint}") as hs,
        running_app(hs, ServeSettings(data=data), SystemClock()) as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "refusal", ["ExpiredTokenException", "UnrecognizedClientException", "AccessDeniedException"]
)
async def test_credentials_refused_in_mid_run_are_503_until_they_are_taken_again(
    tmp_path: Path, refusal: str
) -> None:
    async with gated() as (gate, endpoint), served(endpoint, tmp_path) as api:
        assert (await api.post(MESSAGES, json={"body": "before"})).status_code == 201
        gate.refusal = refusal
        for answer in (await api.post(MESSAGES, json={"body": "lost?"}), await api.get(MESSAGES)):
            told = answer.json()
            assert (answer.status_code, told["title"]) == (503, "No access")
            assert "retry-after" in answer.headers
            assert f"refused the credentials ({refusal}: no): check the AWS_" in told["detail"]
        gate.refusal = None
        assert (await api.post(MESSAGES, json={"body": "after"})).status_code == 201
