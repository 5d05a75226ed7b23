"""The limit: a loop written by hand. One Lua call acknowledges 64 items and leases 64 more.

It knows one queue, one worker and no failures: no tenants, retries, results, rates or batches.
"""

from __future__ import annotations

import json
import time

from redis.asyncio import Redis
from stopwatch import URL, main, run_item

TOGETHER = 64
BLOCK = 500
LEASE_S = 10.0
TURN = """
if #ARGV > 2 then redis.call('ZREM', KEYS[2], unpack(ARGV, 3)) end
local items = redis.call('LPOP', KEYS[1], ARGV[1])
if not items then return {} end
local leases = {}
for _, item in ipairs(items) do
  leases[#leases + 1] = ARGV[2]
  leases[#leases + 1] = item
end
redis.call('ZADD', KEYS[2], unpack(leases))
return items
"""
redis = Redis.from_url(URL)


async def enqueue(group: int, size: int, pause_ms: int) -> None:
    for first in range(0, size, 4 * BLOCK):
        pipeline = redis.pipeline(transaction=False)
        for start in range(first, min(first + 4 * BLOCK, size), BLOCK):
            numbers = range(start, min(start + BLOCK, size))
            pipeline.rpush("loop", *(json.dumps([group, size, pause_ms, n]) for n in numbers))
        await pipeline.execute()


async def work() -> None:
    done: list[bytes] = []
    turn = redis.register_script(TURN)
    while True:
        done = await turn(["loop", "leases"], [TOGETHER, time.time() + LEASE_S, *done])
        for item in done:
            await run_item(*json.loads(item)[:3])


if __name__ == "__main__":
    main(enqueue, work)
