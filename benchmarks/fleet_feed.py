"""`python -m benchmarks.fleet_feed REDIS_PORT SERVERS SENDERS SECONDS`: the servers of `fleet`.

Each server sends a report a second on one connection, and hears the leader's news on another. If
there are fewer SENDERS than SERVERS, some servers share a connection for their reports. What a real
server would put into its reports is made and encoded beforehand, by the production tracker: 100
writes a second on each of 10,000 servers, over a million keys (Zipf with s = 1).

The process costs as little as it can, since it shares the machine with what it feeds. It reads
answers and news only every few seconds: Redis has sent them by then, and it waits for nobody.
Prints as JSON how many reports were sent, what was heard, and the CPU time of this process.
"""

from __future__ import annotations

import resource
import socket
import sys
from contextlib import suppress
from itertools import accumulate
from math import exp
from random import Random
from time import perf_counter, process_time, sleep, time

import msgspec

from heatsink.coordinator.keys import NOTABLE_SHARE, WATCH_SAMPLES
from heatsink.heat.count import Tracker, mark_of
from heatsink.heat.heat import Heat, Report
from heatsink.heat.report import ReportSettings
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.heat import REPORTS_MAX

KEYS = 1_000_000
WRITES_S = 1_000_000
FLEET = 10_000
HOT = 100  # keys above the limit of a bucket
HOT_LEAST = 1.1  # of that limit; a Zipf distribution leaves the last of the hot keys just below it
GROUPS = 50  # the first half of the hot keys is seen by one group of servers each, others by all
TEMPLATES = 12_000
TICK_S = 0.01
DRAIN_S = 4.0  # the time between two reads of a connection
WINDOW = 0x7FFFFFFF
NAME = "server-00000"


def rates(limit_s: float) -> list[float]:
    total = sum(1 / rank for rank in range(1, KEYS + 1))
    by_rank = [WRITES_S / total / rank for rank in range(1, KEYS + 1)]
    for rank in range(HOT):
        by_rank[rank] = max(by_rank[rank], HOT_LEAST * limit_s)
    return by_rank


def watched_keys(by_rank: list[float], limit_s: float) -> dict[int, int]:
    """What the leader would say after a while: the keys near the limit, with their taus."""
    watched = {}
    for rank, rate in enumerate(by_rank):
        if rate < NOTABLE_SHARE * limit_s:
            break
        watched[mark_of(f"key-{rank}")] = 1 << max(int(rate / WATCH_SAMPLES), 1).bit_length() - 1
    return watched


def poisson(mean: float, rng: Random) -> int:
    if mean > 50:
        return max(round(rng.gauss(mean, mean**0.5)), 0)
    least, count, product = exp(-mean), 0, rng.random()
    while product > least:
        count += 1
        product *= rng.random()
    return count


class Writes:
    """The writes of servers in a window: a Poisson process of each key."""

    def __init__(self, rng: Random, settings: ReportSettings) -> None:
        self.rng = rng
        self.by_rank = rates(settings.bucket_units_s)
        self._alone = range(HOT // 2)
        self._others = range(HOT // 2, KEYS)
        self._sums = list(accumulate(self.by_rank[HOT // 2 :]))
        self._per_server = self._sums[-1] / FLEET

    def record(self, tracker: Tracker, group: int) -> int:
        """Record the writes of one server of the group. Returns how many there were."""
        drawn = self.rng.choices(
            self._others, cum_weights=self._sums, k=poisson(self._per_server, self.rng)
        )
        for rank in drawn:
            tracker.record(f"key-{rank}")
        written = len(drawn)
        for rank in self._alone[group::GROUPS]:
            writes = poisson(self.by_rank[rank] * GROUPS / FLEET, self.rng)
            written += writes
            for _ in range(writes):
                tracker.record(f"key-{rank}")
        return written


def templates(rng: Random, count: int) -> list[tuple[dict[str, Heat], int]]:
    """What servers report of a window, as the production tracker decides it, and their writes.

    The template n is one of a server of the group n modulo GROUPS.
    """
    settings = ReportSettings()
    writes = Writes(rng, settings)
    watched = watched_keys(writes.by_rank, settings.bucket_units_s)
    tracker, sampling = Tracker(rng=rng), settings.sampling
    tracker.sample(sampling.tau, sampling.tau_reads, watched)
    tracker.roll()
    made = []
    for n in range(count):
        written = writes.record(tracker, n % GROUPS)
        made.append((tracker.roll().listed(watched, rng), written))
    return made


def encoded(stream: str, listed: dict[str, Heat], written: int) -> tuple[bytes, bytes, bytes]:
    """The command that sends a report: before the number of its server, to its window, and after.

    The numbers of server and window have the same length in every report.
    """
    tau = ReportSettings().sampling.tau
    report = Report(NAME, WINDOW, 1.0, True, tau, listed, units=written)
    body = msgspec.msgpack.encode(report)
    words = (b"XADD", stream.encode(), b"MAXLEN", b"~", b"%d" % REPORTS_MAX, b"*", b"r", body)
    before, _, rest = _command(*words).partition(NAME[-5:].encode())
    middle, _, after = rest.partition(WINDOW.to_bytes(4, "big"))
    return before, middle, after


class Servers:
    def __init__(self, port: int, servers: int, senders: int) -> None:
        self.servers = servers
        keys, rng = RedisKeys(), Random(1)
        self.rng = rng
        made = templates(rng, TEMPLATES)
        self.entries = sum(len(listed) for listed, _ in made) / len(made)
        self.writes = sum(written for _, written in made) / len(made)
        commands = [encoded(keys.heat, *each) for each in made]
        self.bytes = sum(len(part) for each in commands for part in each) / len(made)
        self.commands = [commands[group::GROUPS] for group in range(GROUPS)]
        self.sent = self.unsent = self.heard_bytes = self.answer_bytes = 0
        self.late_s = 0.0
        self.reporting = [_connected(port) for _ in range(senders)]
        self.listening = [_connected(port) for _ in range(servers)]
        subscribe = _command(b"SUBSCRIBE", keys.forgotten.encode(), keys.news.encode())
        for listener in self.listening:
            listener.send(subscribe)

    def run(self, seconds: float) -> None:
        began_s, servers, senders = perf_counter(), self.servers, len(self.reporting)
        sent = drained = 0
        while (passed_s := perf_counter() - began_s) < seconds:
            due = int(passed_s * servers)
            self.late_s = max(self.late_s, (due - sent) / servers)
            window = (int(time()) - 1).to_bytes(4, "big")
            for n in range(sent, due):
                self._report(n % servers, window)
            sent = due
            due = int(passed_s * servers / DRAIN_S)
            for n in range(drained, due):
                self.answer_bytes += _read(self.reporting[n % senders])
                self.heard_bytes += _read(self.listening[n % servers])
            drained = due
            sleep(TICK_S)

    def _report(self, n: int, window: bytes) -> None:
        group = self.commands[n % GROUPS]
        before, middle, after = group[int(self.rng.random() * len(group))]
        try:
            self.reporting[n % len(self.reporting)].send(
                b"%b%05d%b%b%b" % (before, n, middle, window, after)
            )
            self.sent += 1
        except BlockingIOError:
            self.unsent += 1


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _read(connection: socket.socket) -> int:
    with suppress(BlockingIOError):
        return len(connection.recv(65_536))
    return 0


def _command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def main() -> None:
    port, servers, senders = map(int, sys.argv[1:4])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    fleet = Servers(port, servers, senders)
    print("ready", flush=True)
    began_s, used_s = perf_counter(), process_time()
    fleet.run(float(sys.argv[4]))
    told = {
        "reports": fleet.sent,
        "unsent": fleet.unsent,
        "seconds": perf_counter() - began_s,
        "cpu_s": process_time() - used_s,
        "late_s": fleet.late_s,
        "heard_bytes": fleet.heard_bytes,
        "entries": fleet.entries,
        "writes": fleet.writes,
        "bytes": fleet.bytes,
    }
    print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    main()
