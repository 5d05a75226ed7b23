"""A process of a queue with many partitions, for `partitions`: a worker, or a client that looks.

`python partitions.py worker|client URL PARTITIONS`. Each line of stdin is a command, each line of
stdout its answer. It uses only what older versions have too.
"""

import asyncio
import json
import sys
from time import perf_counter, process_time

from heatsink.bulk import Actions, BulkSettings
from heatsink.client.queue import connect_queue
from heatsink.coordinator.workers import QueueWatch
from heatsink.primitives.clock import SystemClock


def say(**answer):
    print(json.dumps(answer), flush=True)


async def lines():
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        yield line.strip()


async def work(queue, partitions):
    actions = Actions()

    @actions.action("note")
    async def note(_item, _context):
        say(ran_s=perf_counter())

    began_s = perf_counter()
    worker = queue.worker(actions, workers=2)
    running = asyncio.ensure_future(worker.run())
    while len(worker.partitions) < partitions:  # noqa: ASYNC110  it has no event
        await asyncio.sleep(0.05)
    say(ready_s=perf_counter() - began_s)
    async for _ in lines():
        say(cpu_s=process_time(), now_s=perf_counter())
    worker.stop()
    await running


async def look(queue):
    watch = QueueWatch(queue.stores, queue.bulk, None, None, SystemClock())
    async for command in lines():
        began_s, cpu_s = perf_counter(), process_time()
        if command == "look":
            await watch.observe()
            say(took_s=perf_counter() - began_s, cpu_s=process_time() - cpu_s)
        else:
            await queue.bulk.submit("note", [1], tenant=f"tenant-{began_s}")
            say(asked_s=began_s)


async def main():
    role, url, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
    queue = connect_queue(url, BulkSettings(partitions=partitions, durability="relaxed"))
    try:
        await (work(queue, partitions) if role == "worker" else look(queue))
    finally:
        await queue.close()


asyncio.run(main())
