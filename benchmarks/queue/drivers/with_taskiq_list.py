"""taskiq on a Redis list: what a worker that dies had taken is gone."""

from __future__ import annotations

from stopwatch import URL
from taskiq_redis import ListQueueBroker
from with_taskiq import run

if __name__ == "__main__":
    run(ListQueueBroker(URL, socket_timeout=None), 32)
