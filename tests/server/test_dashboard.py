"""The dashboard's files as they are served, without a browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from heatsink import connect
from heatsink.primitives.clock import SystemClock
from heatsink.server.api.requests import parse_token
from heatsink.server.dashboard import STATIC, TABS, make_pages
from heatsink.server.process import ServeSettings, running_app

LINES_MAX = 400
FILES_MAX = 12
SCRIPTS = sorted([*STATIC.rglob("*.js"), *STATIC.rglob("*.css")])


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = ServeSettings(data=tmp_path, tokens=(parse_token("read:long-enough"),))
    async with (
        connect("memory://") as hs,
        running_app(hs, settings, SystemClock(), pages=make_pages()) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as site,
    ):
        yield site


@pytest.mark.parametrize("tab", TABS)
async def test_a_tab_is_open_to_all_and_forbids_what_is_not_ours(
    site: httpx.AsyncClient, tab: str
) -> None:
    answer = await site.get(tab)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy


async def test_the_page_finds_all_its_files(site: httpx.AsyncClient) -> None:
    index = (await site.get("/")).text
    for path in re.findall(r'(?:src|href)="(/[^"]+\.[a-z]+)"', index):
        assert (await site.get(path)).status_code == 200, path
    assert (await site.get("/static/no-such.js")).status_code == 404


async def test_what_is_live_needs_the_token_that_the_files_do_not(site: httpx.AsyncClient) -> None:
    assert (await site.get("/v1/recent")).status_code == 401
    assert (await site.get("/keys", headers={"host": "evil.example"})).status_code == 421


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_a_script_is_short_and_asks_nobody_else(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert not re.search(r"https?://", text)
    assert "innerHTML" not in text


def test_folders_are_small_and_the_page_has_no_inline_script() -> None:
    for folder in (STATIC, STATIC / "pages"):
        assert len([file for file in folder.iterdir() if file.is_file()]) <= FILES_MAX
    index = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", index)
