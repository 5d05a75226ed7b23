"""Only what an operator allowed is called: whole hosts and whole segments of a path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heatsink
from heatsink.bulk import Actions, BulkSettings
from heatsink.bulk.actions import Fail
from heatsink.bulk.work.webhooks import webhook_action
from heatsink.errors import InvalidSetting

PREFIX = "https://hooks.example.com/ok"
ALLOWED = [
    "https://hooks.example.com/ok",
    "https://hooks.example.com/ok/",
    "https://hooks.example.com/ok/done?batch=1&x=/../..#top",
    "https://HOOKS.example.com:443/ok/done",
    "https://hooks.example.com/ok/@ann?to=ann@example.com",
    "HTTPS://hooks.example.com/ok/a/../done",
    "https://hooks.example.com/ok/./a/%2E%2e/done",
    "https://hooks.example.com/other/../ok/done",
    "https://hooks.example.com/../ok/done",
]
REFUSED = [
    "https://hooks.example.com.evil.org/ok/done",
    "https://hooks.example.comevil.org/ok/done",
    "https://hooks.example.com@evil.org/ok/done",
    "https://hooks.example.com:443@evil.org/ok/done",
    "https://ann:secret@hooks.example.com/ok/done",
    "https://@hooks.example.com/ok/done",
    "https://evil.org/ok/done",
    "https://evil.org/https://hooks.example.com/ok",
    "https://evil.org?https://hooks.example.com/ok",
    "https://evil.org#https://hooks.example.com/ok",
    "https://hooks.example.com.:443/ok/done",
    "https://hooks.example.com:444/ok/done",
    "https://hooks.example.com:80/ok/done",
    "https://hooks.example.com:0/ok/done",
    "https://hooks.example.com:port/ok/done",
    "https://hooks.example.com:99999/ok/done",
    "http://hooks.example.com/ok/done",
    "http://hooks.example.com:443/ok/done",
    "ftp://hooks.example.com/ok/done",
    "file://hooks.example.com/ok/done",
    "https:/hooks.example.com/ok/done",
    "https:hooks.example.com/ok/done",
    "//hooks.example.com/ok/done",
    "hooks.example.com/ok://done",
    "https:///ok/done",
    "https://hooks.example.com",
    "https://hooks.example.com/",
    "https://hooks.example.com?/ok/done",
    "https://hooks.example.com/okay/done",
    "https://hooks.example.com/ok.evil/done",
    "https://hooks.example.com/ok%2Fdone",
    "https://hooks.example.com/OK/done",
    "https://hooks.example.com//ok/done",
    "https://hooks.example.com/ok/../admin",
    "https://hooks.example.com/ok/../../admin",
    "https://hooks.example.com/ok/..",
    "https://hooks.example.com/ok/%2e%2e/admin",
    "https://hooks.example.com/ok/.%2E/admin",
    "https://hooks.example.com/ok/%252e%252e/admin",
    "https://hooks.example.com/ok/..%2fadmin",
    "https://hooks.example.com/ok/%2e%2e%2fadmin",
    "https://hooks.example.com/ok/..%252fadmin",
    "https://hooks.example.com/ok/..%5cadmin",
    "https://hooks.example.com/ok/..;/admin",
    "https://hooks.example.com/ok/..%3b/admin",
    "https://hooks.example.com/ok/..;x=1/admin",
    "https://hooks.example.com\\.evil.org/ok/done",
    "https://hooks.example.com/ok\\..\\admin",
    "https://evil.org\\@hooks.example.com/ok/done",
    "https://hooks.example.com/ok/\ndone",
    "https://hooks.example.com/ok/.\t./admin",
    "https://hooks.example.com/ok/\x00done",
    "https://hooks.example.com/ok/%00done",
    "https://hooks.example.com/ok/%0d%0ax:1",
    " https://hooks.example.com/ok/done",
    "https://hooks.example.com/ok/done ",
    "https://hooks.example.com/ok/a b",
    "https://hooks.example.com/ok/größe",
    "https://hooks.exämple.com/ok/done",
    "https://hooks.example.com%2eevil.org/ok/done",
    "https://[hooks.example.com]/ok/done",
    "https://[::1/ok/done",
    "https://hooks.example.com/ok/" + "x" * 3_000,
]


def may_submit(url: str, *prefixes: str) -> bool:
    async def submit() -> None:
        settings = BulkSettings(webhooks=prefixes)
        async with heatsink.connect("memory://", bulk=settings) as hs:
            await hs.bulk.submit("note", [1], on_done=url)

    try:
        asyncio.run(submit())
    except InvalidSetting as error:
        return "on_done" not in str(error)
    return True


class _Context:
    idempotency_key = "key"


def would_call(url: str, *prefixes: str, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What the worker calls; None if it refuses."""
    called: list[str] = []
    monkeypatch.setattr("heatsink.bulk.work.webhooks._post", lambda url, *_: called.append(url))
    try:
        webhook_action(prefixes).handler({"url": url, "state": "done"}, _Context())
    except Fail:
        return None
    return called[0]


@pytest.mark.parametrize("prefix", [PREFIX, PREFIX + "/", "https://Hooks.Example.com:443/./ok"])
@pytest.mark.parametrize("url", ALLOWED)
def test_what_is_below_a_prefix_is_called_as_it_was_checked(
    url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert may_submit(url, "https://other.example.com", prefix)
    called = would_call(url, "https://other.example.com", prefix, monkeypatch=monkeypatch)
    assert called is not None
    assert called.startswith("https://hooks.example.com/ok")
    assert ".." not in called.partition("?")[0]


@pytest.mark.parametrize("prefix", [PREFIX, PREFIX + "/"])
@pytest.mark.parametrize("url", REFUSED)
def test_what_only_looks_like_a_prefix_is_refused_at_both_ends(
    url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not may_submit(url, prefix)
    assert would_call(url, prefix, monkeypatch=monkeypatch) is None


@pytest.mark.parametrize("host", ["https://hooks.example.com", "https://hooks.example.com/"])
def test_a_host_alone_allows_its_every_path_and_no_other_host(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("", "/", "/a/b", "/../a", "?x=1"):
        assert would_call("https://hooks.example.com" + path, host, monkeypatch=monkeypatch)
    for url in REFUSED[:5]:
        assert would_call(url, host, monkeypatch=monkeypatch) is None


def test_without_prefixes_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not may_submit(PREFIX)
    assert would_call(PREFIX, monkeypatch=monkeypatch) is None


BAD_PREFIXES: list[Any] = [
    *("", "-", "https", "https://", "https:///ok", "hooks.example.com/", "ftp://example.com/"),
    *(
        "https://ann:hunter2@example.com/",
        "https://example.com/ok?token=1",
        "https://example.com#x",
    ),
    *("https://example.com/\n", "https://example.com\\x", "https://example.com/..%2f", 5, None),
    *("https://exämple.com/", "https://example.com:0/", "https://*.example.com/"),
]


@pytest.mark.parametrize("prefix", BAD_PREFIXES)
def test_a_prefix_that_is_no_url_is_refused_when_it_is_set(prefix: Any) -> None:
    good = "https://example.com/"
    for make in (BulkSettings, Actions):
        with pytest.raises(InvalidSetting, match=r"webhooks\[1\] .*https://host") as refused:
            make(webhooks=(good, prefix))
        assert "hunter2" not in str(refused.value)
        with pytest.raises(InvalidSetting, match="webhooks must be"):
            make(webhooks=good)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/..", "/../", "/ok/..", "/a/../ok", "/a/%2e%2E/ok", "/.%252e"])
def test_a_prefix_that_allows_more_than_it_seems_to_is_refused(path: str) -> None:
    for make in (BulkSettings, Actions):
        with pytest.raises(InvalidSetting, match=r"webhooks\[1\], .*, has '\.\.' in its path"):
            make(webhooks=("https://example.com/", f"https://example.com{path}"))


SEGMENTS = st.sampled_from(["ok", "..", ".", "%2e%2E", "", "a", "%2f", "..%2f", "%5c", "..;", "%"])


@given(st.lists(SEGMENTS, max_size=8))
def test_no_path_leaves_its_prefix_however_servers_read_it(segments: list[str]) -> None:
    """What is sent has no dot segments left, encoded slashes or doubt of any kind."""
    from heatsink.primitives.allowed_urls import allowed_url, check_prefixes

    url = "https://hooks.example.com/" + "/".join(segments)
    sent = allowed_url(url, check_prefixes("webhooks", [PREFIX]))
    if sent is not None:
        path = sent.removeprefix("https://hooks.example.com")
        assert path == "/ok" or path.startswith("/ok/")
        lowered = path.lower()
        assert not any(odd in lowered for odd in ("..", "%2e", "%2f", "%5c", "\\", ";"))


@contextmanager
def a_server() -> Iterator[tuple[str, list[str]]]:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.server("it listens")
async def test_a_server_is_told_how_a_batch_ended() -> None:
    with a_server() as (address, paths):
        settings = BulkSettings(webhooks=(address + "/ok",))
        actions = Actions(webhooks=[address + "/ok"])

        @actions.action("note")
        async def note(item: Any, context: Any) -> None: ...

        async with heatsink.connect("memory://", bulk=settings) as hs:
            running = asyncio.ensure_future((worker := hs.worker(actions)).run())
            on_done = address + "/ok/a/%2e%2e/done?x=1"
            batch = await hs.bulk.submit("note", [1], on_done=on_done)
            await hs.bulk.wait(batch.id, timeout_s=20)
            while not paths:
                await asyncio.sleep(0.01)
            worker.stop()
            await running
        assert paths == ["/ok/done?x=1"]
