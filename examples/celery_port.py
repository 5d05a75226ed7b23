"""A small Celery application, ported: retries, ETA, a periodic task, a chain, results.

docs/how-to/celery.md shows Celery's code beside each part. Run it: ./dev run python
examples/celery_port.py
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import heatsink
from heatsink.bulk import Actions, Context, Next
from heatsink.client.blocking import BlockingHeatsink

actions = Actions()
published: list[str] = []
reminded: list[str] = []
tidied: list[str] = []
outages = {"mug": 2}  # how often the shop that is asked for the price does not answer


@actions.action("fetch-price", max_attempts=5, backoff_s=0.05)
def fetch_price(product: str, context: Context) -> dict[str, Any]:
    """Any exception is retried, after a pause that doubles each time."""
    if context.attempt <= outages.get(product, 0):
        raise ConnectionError(f"no answer about {product}")
    return {"product": product, "cents": 100 * len(product)}


@actions.action("render")
def render(item: dict[str, Any], context: Context) -> str:
    """The second task of the chain gets the first one's result."""
    price = item["result"]
    return f"{price['product']} costs {price['cents'] / 100:.2f} in {context.tenant}"


@actions.action("publish")
def publish(item: dict[str, Any], context: Context) -> None:
    published.append(f"{item['result']} [{context.tenant}]")


@actions.action("remind")
def remind(user: str, context: Context) -> None:
    reminded.append(f"{user}: attempt {context.attempt}")


@actions.action("tidy")
def tidy(item: dict[str, str], context: Context) -> None:
    tidied.append(f"{item['schedule']} at {item['at']}, batch {context.batch}")


def get_price(hs: BlockingHeatsink, product: str) -> Any:
    """A result: Celery's `fetch_price.delay(product).get(timeout=30)`."""
    batch = hs.bulk.submit("fetch-price", [product], results="keep", result_days=1)
    hs.bulk.wait(batch.id, timeout_s=30)
    return next(hs.bulk.results(batch.id)).value


def remind_later(hs: BlockingHeatsink, user: str, pause: timedelta) -> str:
    """An ETA: Celery's `remind.apply_async((user,), eta=…)`."""
    return hs.bulk.submit("remind", [user], at=datetime.now(UTC) + pause).id


def publish_prices(hs: BlockingHeatsink, products: list[str], shop: str) -> str:
    """A chain: Celery's `chain(fetch_price.s(product), render.s(), publish.s())()` for each."""
    chain = Next("render", then="publish")
    batch = hs.bulk.submit("fetch-price", products, tenant=shop, then=chain)
    return f"{batch.id}:then:0:then:0"


def tidy_every(hs: BlockingHeatsink, seconds: float) -> None:
    """A periodic task: Celery's `beat_schedule`, without a beat process that must run once."""
    hs.schedules.set("tidy", "tidy", every=seconds)


def main() -> None:
    with heatsink.connect_sync("memory://") as hs:  # queue="redis://…" in production
        worker = hs.worker(actions)  # `heatsink worker celery_port:actions` in production
        thread = threading.Thread(target=worker.run)
        thread.start()
        tidy_every(hs, 1)
        later = remind_later(hs, "ada", timedelta(seconds=0.5))
        print("price:", get_price(hs, "mug"))
        hs.bulk.wait(publish_prices(hs, ["mug", "teapot"], "Berlin"), timeout_s=30)
        print("published:", sorted(published))
        hs.bulk.wait(later, timeout_s=30)
        print("reminded:", reminded)
        while not (last := hs.schedules.get("tidy").last_batch):
            threading.Event().wait(0.1)
        hs.bulk.wait(last, timeout_s=30)
        print("tidied:", tidied)
        worker.stop()
        thread.join()


if __name__ == "__main__":
    main()
