"""Celery: 32 threads, no result backend; published through kombu's batches."""

from __future__ import annotations

from celery import Celery
from stopwatch import URL, main, run_item_blocking

app = Celery("bench", broker=URL)
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)


@app.task(name="item", ignore_result=True)
def item(*payload: int) -> None:
    run_item_blocking(*payload)


def enqueue(*order: int) -> None:
    with app.producer_pool.acquire(block=True) as producer, producer.batch(1_000):
        for _ in range(order[1]):
            item.apply_async(order, producer=producer)


def one(*payload: int) -> None:
    item.apply_async(payload)


def work() -> None:
    quiet = ["--without-gossip", "--without-mingle", "--loglevel=ERROR"]
    app.worker_main(["worker", "--pool=threads", "--concurrency=32", *quiet])


if __name__ == "__main__":
    main(enqueue, work, one)
