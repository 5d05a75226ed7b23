"""Real traffic on a served Heatsink: a hot conversation, reads, batches, timelines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx

from heatsink import connect
from heatsink.registry.decisions import PIN, Decision
from heatsink.timelines.modes import mode_of
from tests.waiting import PATIENCE_S, until

HOT, WARM = "conv_launch", "conv_team"
BODY = "x" * 300_000  # three hundred units a message: hot without wearing out the machine
WRITERS = 3
EVERY_S = 0.3
PULLED = "grace"


@contextmanager
def traffic(url: str) -> Iterator[None]:
    stop = Event()
    writers = [Thread(target=_write, args=(url, stop)) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def _write(url: str, stop: Event) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as api:
        turn = 0
        while not stop.wait(EVERY_S):
            turn += 1
            api.post(f"/v1/conversations/{HOT}/messages", json={"body": BODY})
            if turn % 3 == 0:
                api.get(f"/v1/conversations/{HOT}/messages", params={"limit": 1, "fresh_for": 0.5})
                api.post(f"/v1/conversations/{WARM}/messages", json={"body": BODY[:60_000]})
            if turn % 4 == 0:
                api.get("/v1/timelines/reader1/home")
            if turn % 5 == 0:
                api.post("/v1/counters/likes:42", json={"amount": 1})


def submit(url: str, action: str, tenant: str, items: int) -> str:
    answer = httpx.post(
        f"{url}/v1/bulk/{action}",
        params={"tenant": tenant},
        json=[{"to": number} for number in range(items)],
        timeout=PATIENCE_S,
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


def tell_stories(url: str, data: Path) -> None:
    """Timelines: two authors who are pushed, and one with more followers than a test can have."""
    with ThreadPoolExecutor(1) as beside:  # the browser's driver has a loop in this thread
        beside.submit(asyncio.run, _pull(data)).result()
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as api:
        for author in ("ada", "linus", PULLED):
            for reader in range(3):
                api.post(f"/v1/timelines/reader{reader}/follows", json={"author": author})
            api.post(f"/v1/timelines/{author}/posts", json={"body": "hello"}).raise_for_status()


async def _pull(data: Path) -> None:
    async with connect(f"sqlite:///{data}/heatsink.db", coordinate=False) as hs:
        reason = "pinned: twelve million followers"
        decision = Decision(mode_of(PULLED), PIN, 2, reason)
        await hs.parts.registry.publish([decision], term=None)


def until_spread(url: str) -> None:
    key = f"{url}/v1/keys/{HOT}"
    until(lambda: httpx.get(key).json()["buckets"] > 1, "a hot key that is spread", look_s=0.1)
