"""A client that starts, in a process of its own: when it is ready, and how long its loop stalls.

`python start.py URL`. A task wakes up every millisecond: how late it is, is how long nothing else
could run. On a busy machine that includes the time of other programs. So the CPU time that the
loop's thread used between two wake-ups is measured too. Modules are imported before. It uses only
what older versions have too.
"""

import asyncio
import json
import sys
from time import perf_counter, process_time, thread_time

import heatsink
import heatsink.stores.dynamodb
import heatsink.stores.sqlite

TICK_S = 0.001
AFTER_S = 3.0


class Stalls:
    def __init__(self):
        self.longest_s = self.longest_cpu_s = 0.0

    async def watch(self):
        while True:
            began_s, cpu_s = perf_counter(), thread_time()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, perf_counter() - began_s - TICK_S)
            self.longest_cpu_s = max(self.longest_cpu_s, thread_time() - cpu_s)

    def take(self):
        longest = self.longest_s, self.longest_cpu_s
        self.longest_s = self.longest_cpu_s = 0.0
        return longest


async def main():
    async with heatsink.connect("memory://"):
        pass
    stalls = Stalls()
    watching = asyncio.ensure_future(stalls.watch())
    await asyncio.sleep(0.05)
    stalls.take()
    began_s, cpu_s = perf_counter(), process_time()
    async with heatsink.connect(sys.argv[1]):
        ready_s, used_s = perf_counter() - began_s, process_time() - cpu_s
        await asyncio.sleep(0)
        starting_s, starting_cpu_s = stalls.take()
        await asyncio.sleep(AFTER_S)
        later_s, later_cpu_s = stalls.take()
    watching.cancel()
    answer = {
        "ready_s": ready_s,
        "cpu_s": used_s,
        "stall_s": starting_s,
        "stall_cpu_s": starting_cpu_s,
        "later_s": later_s,
        "later_cpu_s": later_cpu_s,
    }
    print(json.dumps(answer))


asyncio.run(main())
