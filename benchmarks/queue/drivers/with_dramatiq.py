"""dramatiq: 32 threads, coroutines on its AsyncIO middleware's loop."""

from __future__ import annotations

from threading import Event

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware.asyncio import AsyncIO
from stopwatch import URL, main, run_item

broker = RedisBroker(url=f"{URL}?max_connections=600")
broker.add_middleware(AsyncIO())
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=3)
async def item(*payload: int) -> None:
    await run_item(*payload)


def enqueue(*order: int) -> None:
    for _ in range(order[1]):
        item.send(*order)


def one(*payload: int) -> None:
    item.send(*payload)


def work() -> None:
    broker.emit_after("process_boot")
    dramatiq.Worker(broker, worker_threads=32).start()
    Event().wait()


if __name__ == "__main__":
    main(enqueue, work, one)
