"""`python -m benchmarks.fleet_feed REDIS_PORT SERVERS SECONDS`: the servers of `fleet`.

Each server has two connections, as a real one has: it sends a report a second on one, and hears the
leader's news on the other. What a real server would put into its reports is made beforehand, by the
production tracker: 100 writes a second on each of 10,000 servers, over a million keys (Zipf with
s = 1).
Prints as JSON how many reports were sent, and how many messages were heard.
"""

from __future__ import annotations

import selectors
import socket
import sys
from itertools import accumulate
from random import Random
from time import perf_counter, time

import msgspec

from heatsink.coordinator.keys import NOTABLE_SHARE, WATCH_SAMPLES
from heatsink.heat.count import Tracker, mark_of
from heatsink.heat.heat import Heat, Report
from heatsink.heat.report import ReportSettings
from heatsink.stores.redis.address import RedisKeys

KEYS = 1_000_000
WRITES_S = 1_000_000
FLEET = 10_000
TEMPLATES = 2_000
SUBSETS = 50  # a key of an odd rank is seen by one server in so many, others by all
TICK_S = 0.005
BATCH = 200


def rates() -> list[float]:
    total = sum(1 / rank for rank in range(1, KEYS + 1))
    return [WRITES_S / total / rank for rank in range(1, KEYS + 1)]


def watched_keys(by_rank: list[float], settings: ReportSettings) -> dict[int, int]:
    """What the leader would say after a while: the keys near the limit, with their taus."""
    watched = {}
    for rank, rate in enumerate(by_rank):
        if rate < NOTABLE_SHARE * settings.bucket_units_s:
            break
        watched[mark_of(f"key-{rank}")] = 1 << max(int(rate / WATCH_SAMPLES), 1).bit_length() - 1
    return watched


def templates(rng: Random) -> list[dict[str, Heat]]:
    """What servers report of a window, as the production tracker decides it."""
    by_rank, settings = rates(), ReportSettings()
    watched, sums = watched_keys(by_rank, settings), list(accumulate(by_rank))
    ranks, per_server = range(KEYS), WRITES_S // FLEET
    tracker = Tracker(rng=rng)
    sampling = settings.sampling
    tracker.sample(sampling.tau, sampling.tau_reads, watched)
    tracker.roll()
    made = []
    for n in range(TEMPLATES):
        for rank in rng.choices(ranks, cum_weights=sums, k=per_server):
            if rank % 2 == 0 or rank > 1_000:
                tracker.record(f"key-{rank}")
            elif (n + rank) % SUBSETS == 0:  # few servers see it, each of them more often
                tracker.record(f"key-{rank}", SUBSETS)
        made.append(tracker.roll().listed(watched, rng))
    return made


class Servers:
    def __init__(self, port: int, servers: int) -> None:
        self.port = port
        self.rng = Random(1)
        self.templates = templates(self.rng)
        self.sent = self.heard = self.heard_bytes = 0
        self.selector = selectors.DefaultSelector()
        keys = RedisKeys()
        self.heat = keys.heat.encode()
        self.reporting = [self._connect("report") for _ in range(servers)]
        subscribe = _command(b"SUBSCRIBE", keys.forgotten.encode(), keys.news.encode())
        for _ in range(servers):
            self._connect("news").send(subscribe)

    def _connect(self, what: str) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port))
        made.setblocking(False)
        self.selector.register(made, selectors.EVENT_READ, what)
        return made

    def run(self, seconds: float) -> None:
        began_s, servers = perf_counter(), len(self.reporting)
        while (passed_s := perf_counter() - began_s) < seconds:
            due = min(int(passed_s * servers), self.sent + BATCH)
            for n in range(self.sent, due):
                self._report(n % servers)
            self.sent = due
            self._hear()

    def _report(self, n: int) -> None:
        keys = self.templates[self.rng.randrange(TEMPLATES)]
        report = Report(f"server-{n}", int(time()) - 1, 1.0, True, 16, keys, units=100)
        body = msgspec.msgpack.encode(report)
        words = (b"XADD", self.heat, b"MAXLEN", b"~", b"20000", b"*", b"r", body)
        try:
            self.reporting[n].send(_command(*words))
        except BlockingIOError:
            self.sent -= 1

    def _hear(self) -> None:
        for key, _ in self.selector.select(TICK_S):
            made = key.fileobj
            assert isinstance(made, socket.socket)
            body = made.recv(65_536)
            if key.data == "news":
                self.heard += 1
                self.heard_bytes += len(body)


def _command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def main() -> None:
    port, servers, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    fleet = Servers(port, servers)
    entries = sum(map(len, fleet.templates)) / TEMPLATES
    print("ready", flush=True)
    began_s = perf_counter()
    fleet.run(seconds)
    took_s = perf_counter() - began_s
    told = {
        "reports": fleet.sent,
        "seconds": took_s,
        "heard": fleet.heard,
        "heard_bytes": fleet.heard_bytes,
        "entries": entries,
    }
    print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    main()
