"""`python -m benchmarks.fleet_feed REDIS_PORT SERVERS SENDERS SECONDS AFTER`: servers of `fleet`.

Each server sends a report a second on one connection, and hears the leader's news on another. If
there are fewer SENDERS than SERVERS, some servers share a connection for their reports. What a real
server counts in a window is made beforehand by the production tracker: 100 writes a second on each
of 10,000 servers, over a million keys (Zipf with s = 1). What it reports of that follows the
leader's last notice (tau, and the keys to watch), as `TopKeys.listed` decides it. Reports are
encoded again when the notice has changed.

While no news comes, the servers poll Redis as real ones do (`RedisNews`, `RedisSoft`, `RedisWire`).

The process costs as little as it can, since it shares the machine with what it feeds. It reads
answers and news only every few seconds: Redis has sent them by then, and it waits for nobody. Only
one listener is read at once, for all: they all get the same news.

After SECONDS it prints as JSON how many reports were sent, what was heard, and the CPU time of this
process. After AFTER more seconds it prints how often servers polled. It keeps its connections until
its input ends.
"""

from __future__ import annotations

import heapq
import resource
import socket
import sys
from contextlib import suppress
from itertools import accumulate
from math import exp
from random import Random
from time import perf_counter, process_time, sleep, time

import hiredis
import msgspec

from heatsink.heat.count import TopKeys, Tracker
from heatsink.heat.heat import Report
from heatsink.heat.report import ReportSettings, Sampling
from heatsink.registry.news import MAC_BYTES, pushed_s
from heatsink.stores.redis import news
from heatsink.stores.redis.address import RedisKeys
from heatsink.stores.redis.heat import REPORTS_MAX, START_S

KEYS = 1_000_000
WRITES_S = 1_000_000
FLEET = 10_000
HOT = 100  # keys above the limit of a bucket
HOT_LEAST = 1.1  # of that limit; a Zipf distribution leaves the last of the hot keys just below it
GROUPS = 50  # the first half of the hot keys is seen by one group of servers each, others by all
NEAR = 500  # keys that may get near the limit: the leader may want to watch them
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


class Template:
    """The writes of a server in a window, and the command that reports them by a notice.

    The numbers of server and window have the same length in every report, so a command is made once
    for many servers and windows: the parts before the server, up to the window, and after it.
    """

    def __init__(self, counted: TopKeys, written: int) -> None:
        near = {f"key-{rank}" for rank in range(NEAR)}
        entries = counted.entries.items()
        counted.entries = {key: entry for key, entry in entries if key in near}
        self._counted = counted
        self.written = written
        self._version = -1
        self.listed = 0
        self.parts: tuple[bytes, bytes, bytes] = b"", b"", b""

    def follow(self, notice: Notice, rng: Random) -> None:
        """Encode the report again if the notice is another one than the last time."""
        if self._version == notice.version:
            return
        self._version = notice.version
        listed = self._counted.listed(notice.watched, rng, 1.0)
        self.listed = len(listed)
        report = Report(NAME, WINDOW, 1.0, True, self._counted.tau, listed, units=self.written)
        words = (*notice.words, msgspec.msgpack.encode(report))
        before, _, rest = _command(*words).partition(NAME[-5:].encode())
        middle, _, after = rest.partition(WINDOW.to_bytes(4, "big"))
        self.parts = before, middle, after


class Notice:
    """What the leader said last about sampling, and the command that sends a report."""

    def __init__(self, stream: str, servers: int) -> None:
        kept = b"%d" % max(REPORTS_MAX, int(START_S * servers))
        self.words = (b"XADD", stream.encode(), b"MAXLEN", b"~", kept, b"*", b"r")
        self.sampling = ReportSettings().sampling
        self.watched: dict[int, int] = {}
        self.version = 0
        self._heard = b""

    def hear(self, pair: bytes) -> bool:
        """Follow the notice in a push, if there is one. Returns whether the tau is another one."""
        sealed = pair.partition(b"\n")[2]
        if not sealed or sealed == self._heard:
            return False
        self._heard, tau = sealed, self.sampling.tau
        self.sampling = msgspec.msgpack.decode(sealed[MAC_BYTES:], type=Sampling)
        self.watched = self.sampling.watched
        self.version += 1
        return self.sampling.tau != tau


def templates(rng: Random, sampling: Sampling, count: int) -> list[Template]:
    """The template n is one of a server of the group n modulo GROUPS."""
    writes, tracker = Writes(rng, ReportSettings()), Tracker(rng=rng)
    tracker.sample(sampling.tau, sampling.tau_reads, sampling.watched)
    tracker.roll()
    made = []
    for n in range(count):
        written = writes.record(tracker, n % GROUPS)
        made.append(Template(tracker.roll(), written))
    return made


class Polling:
    """When servers that hear no news poll Redis: the intervals of the production code.

    Each server has three polls of its own: for the pair, for soft decisions, and a ping on its
    subscription.
    """

    def __init__(self, servers: int, rng: Random, keys: RedisKeys) -> None:
        soft = _command(b"XREVRANGE", keys.soft.encode(), b"+", b"-", b"COUNT", b"1")
        soft += _command(b"XRANGE", keys.soft.encode(), b"(0-0", b"+", b"COUNT", b"1000")
        self.kinds = (
            (_command(b"GET", keys.pair.encode()), news.PAIR_POLLS_S),
            (soft, news.SOFT_POLLS_S),
            (_command(b"PING"), news.PINGS_S),
        )
        self._servers = servers
        self._rng = rng
        self._due: list[tuple[float, int, int]] = []

    def rest(self) -> None:
        self._due = []

    def due(self, now_s: float) -> list[tuple[int, int]]:
        """Return the servers whose polls are due, with the kinds of these polls."""
        rng, servers = self._rng, self._servers
        if not self._due:
            every = [servers / per_s for _, per_s in self.kinds]
            self._due = [
                (now_s + every[kind] * rng.random(), n, kind)
                for n in range(servers)
                for kind in range(len(every))
            ]
            heapq.heapify(self._due)
        found = []
        while self._due[0][0] <= now_s:
            due_s, n, kind = self._due[0]
            found.append((n, kind))
            every_s = rng.uniform(0.5, 1.5) * servers / self.kinds[kind][1]
            heapq.heapreplace(self._due, (due_s + every_s, n, kind))
        return found


class Servers:
    def __init__(self, port: int, servers: int, senders: int) -> None:
        self.servers = servers
        keys, rng = RedisKeys(), Random(1)
        self.rng = rng
        self.notice = Notice(keys.heat, servers)
        self.polling = Polling(servers, Random(2), keys)
        self._make_templates()
        self.sent = self.unsent = self.heard_bytes = self.answer_bytes = self.polls = 0
        self.listed = self.writes = self.bytes = 0
        self.late_s = 0.0
        self.reporting = [_connected(port) for _ in range(senders)]
        self.listening = [_connected(port) for _ in range(servers)]
        self._reader = hiredis.Reader()
        self._heard_s = perf_counter()
        subscribe = _command(b"SUBSCRIBE", keys.forgotten.encode(), keys.news.encode())
        for listener in self.listening:
            listener.send(subscribe)

    def _make_templates(self) -> None:
        made = templates(self.rng, self.notice.sampling, TEMPLATES)
        self.templates = [made[group::GROUPS] for group in range(GROUPS)]

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
                if n % servers:
                    self.heard_bytes += _read(self.listening[n % servers])
            drained = due
            self._hear()
            sleep(TICK_S)

    def _hear(self) -> None:
        """Take in the news that the first server heard; if there is none, let servers poll."""
        with suppress(BlockingIOError):
            self._reader.feed(self.listening[0].recv(65_536))
        now_s = perf_counter()
        while heard := self._reader.gets():
            if heard[0] != b"message":
                continue
            pushed = news._PUSH.decode(heard[2])
            if pushed.pair:
                self._heard_s = now_s
                self.polling.rest()
                if self.notice.hear(pushed.pair):
                    self._make_templates()
        if now_s - self._heard_s >= pushed_s(self.servers):
            for n, kind in self.polling.due(now_s):
                self._poll(n, kind)

    def _poll(self, n: int, kind: int) -> None:
        command, per_s = self.polling.kinds[kind]
        is_ping = per_s == news.PINGS_S
        at = self.listening[n] if is_ping else self.reporting[n % len(self.reporting)]
        with suppress(BlockingIOError):
            at.send(command)
            self.polls += 1

    def _report(self, n: int, window: bytes) -> None:
        group = self.templates[n % GROUPS]
        template = group[int(self.rng.random() * len(group))]
        template.follow(self.notice, self.rng)
        before, middle, after = template.parts
        report = b"%b%05d%b%b%b" % (before, n, middle, window, after)
        try:
            self.reporting[n % len(self.reporting)].send(report)
        except BlockingIOError:
            self.unsent += 1
            return
        self.sent += 1
        self.listed += template.listed
        self.writes += template.written
        self.bytes += len(report)


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
    seconds, after_s = map(float, sys.argv[4:6])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    fleet = Servers(port, servers, senders)
    print("ready", flush=True)
    began_s, used_s = perf_counter(), process_time()
    fleet.run(seconds)
    sent = max(fleet.sent, 1)
    told = {
        "reports": fleet.sent,
        "unsent": fleet.unsent,
        "seconds": perf_counter() - began_s,
        "cpu_s": process_time() - used_s,
        "late_s": fleet.late_s,
        "heard_bytes": fleet.heard_bytes,
        "entries": fleet.listed / sent,
        "writes": fleet.writes / sent,
        "bytes": fleet.bytes / sent,
        "polls": fleet.polls,
    }
    print(msgspec.json.encode(told).decode(), flush=True)
    fleet.run(after_s)
    print(msgspec.json.encode({**told, "polls": fleet.polls - told["polls"]}).decode(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
