"""Huey: four threads."""

from __future__ import annotations

import logging

from huey import RedisHuey
from stopwatch import URL, main, run_item_blocking

huey = RedisHuey("bench", url=f"{URL}?max_connections=600")


@huey.task(name="item")
def item(*payload: int) -> None:
    run_item_blocking(*payload)


def enqueue(*order: int) -> None:
    for _ in range(order[1]):
        item(*order)


def one(*payload: int) -> None:
    item(*payload)


def work() -> None:
    logging.disable()
    huey.create_consumer(workers=4, worker_type="thread").run()


if __name__ == "__main__":
    main(enqueue, work, one)
