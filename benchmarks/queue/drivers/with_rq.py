"""RQ: the worker that does not fork for each job (45 a second if it does)."""

from __future__ import annotations

import logging

import with_rq
from redis import Redis
from rq import Queue, SimpleWorker
from stopwatch import URL, main, run_item_blocking

queue = Queue(connection=Redis.from_url(URL))


def item(*payload: int) -> None:
    run_item_blocking(*payload)


def enqueue(*order: int) -> None:
    for first in range(0, order[1], 1_000):
        calls = range(first, min(first + 1_000, order[1]))
        queue.enqueue_many([Queue.prepare_data(with_rq.item, order) for _ in calls])


def work() -> None:
    logging.disable()
    SimpleWorker([queue], connection=queue.connection).work()


if __name__ == "__main__":
    main(enqueue, work)
