"""Application servers for `test_fleet_settings`: many processes for the price of one import.

    python -m tests.e2e.apps FOLDER STORE NEWS COUNT

forks COUNT application servers. Together they append `WRITES_S` entries a second to one
conversation. Each writes what it saw into FOLDER: `app-N.out` has a line for each acknowledged
append, `app-N.settings` a line for each change of a setting, and `app-N.err` its warnings. The
first one is started with rules of its own, which the deployment overrules.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from time import time

import heatsink
from heatsink.errors import Retryable

WRITES_S = 120
LOOK_S = 0.05
WATCHED = ("rules.bucket_units_s", "rules.buckets_max", "window_s", "timelines.threshold")


class App:
    def __init__(self, folder: Path, number: int, pause_s: float) -> None:
        self._name = f"app-{number}"
        self._folder = folder
        self._pause_s = pause_s
        self._is_odd = number == 0

    async def run(self, store: str, news: str) -> None:
        rules = heatsink.BucketRules(buckets_max=7) if self._is_odd else heatsink.BucketRules()
        async with heatsink.connect(store, news=news, coordinate=False, rules=rules) as hs:
            await asyncio.gather(self._write(hs), self._watch(hs))

    async def _write(self, hs: heatsink.Heatsink) -> None:
        with (self._folder / f"{self._name}.out").open("w", buffering=1) as out:
            n = 0
            while True:
                body = f"{self._name} {n}"
                try:
                    receipt = await hs.log.append("conv", body.encode())
                except Retryable:
                    continue
                out.write(f"{receipt.id} {body}\n")
                n += 1
                await asyncio.sleep(self._pause_s)

    async def _watch(self, hs: heatsink.Heatsink) -> None:
        seen: dict[str, str] = {}
        with (self._folder / f"{self._name}.settings").open("w", buffering=1) as out:
            while True:
                for name in WATCHED:
                    text = str(hs.settings.get(name))
                    if seen.get(name) != text:
                        seen[name] = text
                        out.write(f"{time():.3f} {text}\n")
                await asyncio.sleep(LOOK_S)


def main(folder: str, store: str, news: str, count: str) -> None:
    children = []
    for number in range(int(count)):
        if (child := os.fork()) == 0:
            os.dup2(os.open(Path(folder) / f"app-{number}.err", os.O_WRONLY | os.O_CREAT), 2)
            app = App(Path(folder), number, int(count) / WRITES_S)
            asyncio.run(app.run(store, news))
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
