"""A client that starts, in a process of its own: when it is ready, and how long its loop stalls.

`python start.py URL`. A task wakes up every millisecond: how late it is, is how long nothing else
could run. Modules are imported before. It uses only what older versions have too.
"""

import asyncio
import json
import sys
from time import perf_counter, process_time

import heatsink
import heatsink.stores.dynamodb
import heatsink.stores.sqlite

TICK_S = 0.001
AFTER_S = 3.0


class Stalls:
    def __init__(self):
        self.longest_s = 0.0

    async def watch(self):
        while True:
            began_s = perf_counter()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, perf_counter() - began_s - TICK_S)


async def main():
    async with heatsink.connect("memory://"):
        pass
    stalls = Stalls()
    watching = asyncio.ensure_future(stalls.watch())
    await asyncio.sleep(0.05)
    stalls.longest_s, began_s, cpu_s = 0.0, perf_counter(), process_time()
    async with heatsink.connect(sys.argv[1]):
        ready_s, used_s = perf_counter() - began_s, process_time() - cpu_s
        await asyncio.sleep(0)
        starting_s, stalls.longest_s = stalls.longest_s, 0.0
        await asyncio.sleep(AFTER_S)
        later_s = stalls.longest_s
    watching.cancel()
    answer = {"ready_s": ready_s, "cpu_s": used_s, "stall_s": starting_s, "later_s": later_s}
    print(json.dumps(answer))


asyncio.run(main())
