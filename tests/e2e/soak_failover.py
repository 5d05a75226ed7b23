"""`./dev soak --failover [ROUNDS] [--seed S] [--first R]`: a lagging replica becomes the primary.

Sentinel watches a primary and two replicas (`min-replicas-to-write 1`, `appendfsync everysec`). In
each round the links to the replicas stall for a moment, the primary goes on and acknowledges
writes, and then it is killed or frozen: whoever is promoted has not got what was on the links. A
frozen primary wakes up after the switch and still believes that it is one. Submitters and workers
live on. In the end every acknowledged batch must have a result for each item or name what it lost
(`audit`). The seed decides sizes and moments; how the processes interleave, it does not.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

from heatsink.testing.redis import MissingServer, RedisServer

from .disk import FOLDER
from .soak_losses import Counts, Hit, Plan, Round, main, play

HOST = "127.0.0.1"
SERVICE = "queue"
SWITCH_S = 30.0
HEAL_S = 30.0
LOOK_S = 0.02
OPTIONS = {
    "appendfsync": "everysec",
    "rdbcompression": "no",
    "auto-aof-rewrite-min-size": "16mb",
    "repl-diskless-sync-delay": "0",
    "min-replicas-to-write": "1",
}


class Link:
    """The way from a replica to its primary, which can stall and break."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._target = 0
        self._ways: set[asyncio.Task[None]] = set()
        self._joined: set[asyncio.Task[None] | None] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Its port."""
        self._server = await asyncio.start_server(self._join, HOST, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def open(self, target: int) -> None:
        self._target = target
        self._is_open.set()

    def stall(self) -> None:
        self._is_open.clear()

    def cut(self) -> None:
        """What is on the way is lost."""
        for way in self._ways:
            way.cancel()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._joined.add(me := asyncio.current_task())
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
            there = asyncio.ensure_future(_carry(reader, far_writer, self._is_open))
            back = asyncio.ensure_future(_carry(far_reader, writer, self._is_open))
            self._ways |= {there, back}
            await asyncio.wait({there, back})
            self._ways -= {there, back}
        writer.transport.abort()
        self._joined.discard(me)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        while self._joined:
            self.cut()
            await asyncio.sleep(LOOK_S)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_go: asyncio.Event
) -> None:
    try:
        while data := await reader.read(65_536):
            await may_go.wait()
            writer.write(data)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.transport.abort()


class Group:
    """`async with Group() as group`: `group.primary` is whom Sentinel names."""

    def __init__(self) -> None:
        self.servers = [RedisServer(append_only=True, options=OPTIONS) for _ in range(3)]
        self._sentinel = RedisServer(mode=["--sentinel"])
        self._links = {server.port: Link() for server in self.servers}
        self._ports: dict[int, int] = {}

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self._sentinel.address}/{SERVICE}"

    @property
    def primary(self) -> RedisServer:
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        port = int(self._sentinel.command(*words).split()[-1])
        return next(server for server in self.servers if server.port == port)

    def replicas(self, primary: RedisServer) -> list[RedisServer]:
        return [server for server in self.servers if server is not primary]

    async def __aenter__(self) -> Group:
        try:
            for server in (*self.servers, self._sentinel):
                await asyncio.to_thread(server.__enter__)
            self._links = {server.port: Link() for server in self.servers}
            self._ports = {port: await link.start() for port, link in self._links.items()}
            watched = str(self.servers[0].port)
            for replica in self.servers[1:]:  # before Sentinel looks: it does so every 10 s
                replica.command("REPLICAOF", HOST, watched)
            await until(lambda: all(map(_is_linked, self.servers[1:])), HEAL_S, "replicas follow")
            self._sentinel.command("SENTINEL", "MONITOR", SERVICE, HOST, watched, "1")
            for name, value in (("down-after-milliseconds", 700), ("failover-timeout", 2_000)):
                self._sentinel.command("SENTINEL", "SET", SERVICE, name, str(value))
            await until(lambda: self._knows_replicas(), HEAL_S, "Sentinel knows both replicas")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in self._links.values():
            await link.close()
        for server in (self._sentinel, *self.servers):
            server.__exit__(None, None, None)

    def _knows_replicas(self) -> bool:
        said = self._sentinel.command("SENTINEL", "REPLICAS", SERVICE)
        return all(str(server.port) in said for server in self.servers[1:])

    async def lengthen(self, primary: RedisServer) -> None:
        """The replicas follow through links that can stall. Sentinel mends that after 8 s."""
        for replica in self.replicas(primary):
            self._links[replica.port].open(primary.port)
            replica.command("REPLICAOF", HOST, str(self._ports[replica.port]))
        await until(lambda: all(map(_is_linked, self.replicas(primary))), HEAL_S, "links are up")

    def stall(self, replica: RedisServer) -> None:
        self._links[replica.port].stall()

    def cut(self) -> None:
        for link in self._links.values():
            link.cut()

    async def heal(self) -> None:
        """All follow whom Sentinel names, on the straight way. It may change its mind meanwhile."""
        for server in self.servers:
            if not server.answers():
                server._options["replicaof"] = f"{HOST} {self.primary.port}"
                await asyncio.to_thread(server.start)
                server._options.pop("replicaof")
            server.command("CONFIG", "SET", "replica-priority", "100")
        try:
            await until(self._follow, HEAL_S, "all replicas follow their primary")
        except MissingServer as error:
            for server in self.servers:
                error.add_note(f"{server.port}: {server.command('INFO', 'replication')}")
            raise

    def _follow(self) -> bool:
        """Whether all do; those who follow another are told."""
        primary, linked = self.primary, 0
        for replica in self.replicas(primary):
            info = replica.command("INFO", "replication")
            if f"master_port:{primary.port}\r" not in info:
                replica.command("REPLICAOF", HOST, str(primary.port))
            linked += "master_link_status:up" in info
        return linked == len(self.servers) - 1 and self.primary is primary


def _is_linked(replica: RedisServer) -> bool:
    info = replica.command("INFO", "replication")
    return "role:slave" in info and "master_link_status:up" in info


async def until(condition: Callable[[], bool], patience_s: float, what: str) -> None:
    give_up_s = monotonic() + patience_s
    while True:
        with suppress(OSError, ValueError, IndexError):
            if condition():
                return
        if monotonic() > give_up_s:
            raise MissingServer(f"waited {patience_s:g} s in vain: {what}")
        await asyncio.sleep(LOOK_S)


async def fail_over(one: Round, group: Group) -> Hit:
    """While a batch is half staged, and while the replicas lag."""
    rng, primary = one.rng, group.primary
    await group.lengthen(primary)
    await one.aim(rng.uniform(0.1, 0.5))
    replicas = group.replicas(primary)
    rng.shuffle(replicas)
    replicas[0].command("CONFIG", "SET", "replica-priority", rng.choice(("1", "100")))
    for replica in replicas:
        group.stall(replica)
        await asyncio.sleep(rng.uniform(0.0, 0.5))
    await one.aim(0.1, more=500)
    one.strike()
    is_frozen = rng.random() < 0.5
    _signal(primary, signal.SIGSTOP)
    held = await asyncio.to_thread(_items, primary, one)
    if not is_frozen:
        await asyncio.to_thread(primary.kill)
    group.cut()
    await until(lambda: group.primary is not primary, SWITCH_S, "Sentinel promotes a replica")
    kept = await asyncio.to_thread(_items, group.primary, one)
    if is_frozen:
        _signal(primary, signal.SIGCONT)
        await asyncio.sleep(rng.uniform(0.0, 1.0))
    await group.heal()
    return Hit(held - kept)


def _signal(server: RedisServer, number: signal.Signals) -> None:
    assert server._process is not None
    server._process.send_signal(number)


def _items(server: RedisServer, one: Round) -> frozenset[tuple[str, int]]:
    """The items of this round's batches that a server has written down, each once."""
    pattern = re.compile(rb"~(%s-[\w-]+)~(\d+)~" % one.prefix.encode())
    found: set[tuple[str, int]] = set()
    for path in (server.path / FOLDER).iterdir():
        found |= {(batch.decode(), int(n)) for batch, n in pattern.findall(path.read_bytes())}
    return frozenset(found)


async def run_rounds(plan: Plan) -> Counts:
    async with Group() as group:
        return await play(plan, group.url, {}, partial(fail_over, group=group))


def run(plan: Plan) -> Counts:
    return asyncio.run(run_rounds(plan))


if __name__ == "__main__":
    sys.exit(main("failover", __doc__, run))
