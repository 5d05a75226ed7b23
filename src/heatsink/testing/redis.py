"""Private Redis or Valkey servers for tests: one server, a cluster, or a primary with a sentinel.

The servers need no root, listen on free ports of the loopback interface, and end with the process
that started them. Each class raises `MissingServer` if no server is installed or the server does
not start.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from types import TracebackType
from urllib.parse import quote

from heatsink.stores.embedded import MissingServer, end, find_server, free_port, start_tied

HOST = "127.0.0.1"
START_S = 30.0
START_ATTEMPTS = 3
LOOK_S = 0.005
ANSWER_S = 30.0
NO_DISK = {"save": "", "appendonly": "no"}
EVERY_WRITE = {"appendonly": "yes", "appendfsync": "always"}  # `everysec` makes callers wait


def _reply(connection: socket.socket) -> bytes:
    """Receive one whole reply, which may come in pieces."""
    said = b""
    while not _end_of_reply(said) and (more := connection.recv(65_536)):
        said += more
    return said


def _end_of_reply(said: bytes, start: int = 0) -> int:
    """Return where the reply that begins at `start` ends. Returns 0 if its end has not come yet."""
    line = said.find(b"\r\n", start)
    kind, end = said[start : start + 1], line + 2
    if line < 0:
        return 0
    if kind not in (b"$", b"*"):
        return end
    count = int(said[start + 1 : line])
    if kind == b"$":
        end += count + 2 if count >= 0 else 0
        return end if end <= len(said) else 0
    for _ in range(count):
        end = _end_of_reply(said, end)
        if not end:
            return 0
    return end


class RedisServer:
    """One private server; all its data is deleted at the end.

    With `append_only`, writes are on disk and survive `kill` and `start`. `options` are lines of
    the configuration, `acl` lines of the ACL file (`user app on …`).

    Example::

        with RedisServer() as server:
            hs = heatsink.connect("sqlite:///test.db", news=server.url)
    """

    def __init__(
        self,
        append_only: bool = False,
        password: str = "",
        acl: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        mode: Sequence[str] = (),
        clustered: bool = False,
    ) -> None:
        self.port, self.bus_port = free_port(), free_port()
        self._clustered = clustered
        self.password = password
        self._folder = TemporaryDirectory(prefix="heatsink-redis-")
        self._options = {**NO_DISK, **(EVERY_WRITE if append_only else {})}
        self._options |= {"requirepass": password} if password else {}
        self._options |= options or {}
        self._acl = list(acl)
        self._mode = list(mode)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> Path:
        return Path(self._folder.name)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{secret}{self.address}"

    def url_for(self, user: str, password: str) -> str:
        return f"redis://{quote(user, safe='')}:{quote(password, safe='')}@{self.address}"

    def __enter__(self) -> RedisServer:
        try:
            self._start_somewhere()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start_somewhere(self) -> None:
        """Start the server. If another process takes one of its ports first, try other ports."""
        find_server()
        for _ in range(START_ATTEMPTS - 1):
            with suppress(MissingServer):
                return self.start()
            self.port, self.bus_port = free_port(), free_port()
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Start the server and wait until it answers. After `kill` it loads its data from disk."""
        self.kill()
        config = self.path / "server.conf"
        config.write_text(self._configuration())
        self._process = start_tied(self._command(config), self.path, self.path / "log")
        self._wait_for_answer()

    def _command(self, config: Path) -> list[str | Path]:
        """Return the command that starts the server.

        Tests override this to run the server under another program.
        """
        return [find_server(), config, *self._mode]

    def _configuration(self) -> str:
        lines = {"bind": HOST, "port": str(self.port), "dir": str(self.path), **self._options}
        if self._clustered:
            lines |= {"cluster-enabled": "yes", "cluster-port": str(self.bus_port)}
        if self._acl:
            (self.path / "users.acl").write_text("\n".join(self._acl) + "\n")
            lines["aclfile"] = str(self.path / "users.acl")
        return "".join(f'{name} "{value}"\n' for name, value in lines.items())

    def _wait_for_answer(self) -> None:
        assert self._process is not None
        deadline_s = monotonic() + START_S
        while not self.answers():
            if self._process.poll() is not None or monotonic() > deadline_s:
                said = (self.path / "log").read_text(errors="replace")[-500:]
                raise MissingServer(f"the Redis server did not start; its log ends with: {said}")
            sleep(LOOK_S)

    def answers(self) -> bool:
        try:
            return self.command("PING").startswith(("PONG", "NOAUTH"))
        except OSError:
            return False

    def command(self, *words: str) -> str:
        """Send one command (no spaces in its words). Returns the reply without its type byte."""
        with socket.create_connection((HOST, self.port), timeout=ANSWER_S) as connection:
            if self.password and not self._acl:
                connection.sendall(f"AUTH {self.password}\r\n".encode())
                _reply(connection)
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return _reply(connection).decode(errors="replace")[1:].strip()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Freeze the server during the block: it accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server (kill -9); data that is not on disk is lost."""
        if self._process is not None:
            end(self._process)
            self._process = None

    def restart_empty(self) -> None:
        """Kill the server, delete its files and start it again on the same port."""
        self.kill()
        for kept in self.path.iterdir():
            shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
        self.start()


MASTERS = 3
SLOTS = 16_384
READY_S = 60.0
SETTLE_LOOK_S = 0.05


class RedisCluster:
    """A private cluster of three masters, ready after about two seconds.

    Each master has `replicas` replicas. `options` and `append_only` are as in `RedisServer`, and
    apply to all nodes.

    Example::

        with RedisCluster() as cluster:
            hs = heatsink.connect("sqlite:///test.db", news=cluster.url)
    """

    def __init__(
        self,
        acl: Sequence[str] = (),
        replicas: int = 0,
        options: Mapping[str, str] | None = None,
        append_only: bool = False,
    ) -> None:
        def node() -> RedisServer:
            return RedisServer(append_only, acl=acl, options=options, clustered=True)

        self.masters = [node() for _ in range(MASTERS)]
        self.replicas = [node() for _ in range(MASTERS * replicas)]

    @property
    def nodes(self) -> list[RedisServer]:
        """All servers: the masters of the beginning, then their replicas."""
        return [*self.masters, *self.replicas]

    @property
    def url(self) -> str:
        return f"redis+cluster://{self._addresses}"

    @property
    def _addresses(self) -> str:
        return ",".join(master.address for master in self.masters)

    def url_for(self, user: str, password: str) -> str:
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"redis+cluster://{login}@{self._addresses}"

    def __enter__(self) -> RedisCluster:
        try:
            for node in self.nodes:
                node.__enter__()
            self._share_slots()
            self._introduce()
            self._wait_until(self._is_ready)
            if self.replicas:
                self._assign_replicas()
                self._wait_until(self._is_replicated)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            node.__exit__(kind, error, trace)

    def _share_slots(self) -> None:
        for n, master in enumerate(self.masters):
            first, last = n * SLOTS // MASTERS, (n + 1) * SLOTS // MASTERS - 1
            master.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))

    def _introduce(self) -> None:
        for node in self.nodes[1:]:
            ports = str(node.port), str(node.bus_port)
            self.masters[0].command("CLUSTER", "MEET", HOST, *ports)

    def _assign_replicas(self) -> None:
        for n, replica in enumerate(self.replicas):
            master = self.masters[n % MASTERS].command("CLUSTER", "MYID").split()[-1]
            replica.command("CLUSTER", "REPLICATE", master)

    def _wait_until(self, holds: Callable[[RedisServer], bool]) -> None:
        deadline_s = monotonic() + READY_S
        while not all(holds(node) for node in self.nodes):
            if monotonic() > deadline_s:
                seen = [node.command("CLUSTER", "INFO") for node in self.nodes]
                raise MissingServer(f"the Redis Cluster did not become ready: {seen}")
            sleep(SETTLE_LOOK_S)

    def _is_ready(self, node: RedisServer) -> bool:
        info = node.command("CLUSTER", "INFO")
        return "cluster_state:ok" in info and f"cluster_known_nodes:{len(self.nodes)}" in info

    def _is_replicated(self, node: RedisServer) -> bool:
        """Whether a node has all its replicas or its master, and knows all replicas."""
        seen = node.command("INFO", "replication")
        has_peers = (
            "master_link_status:up" in seen
            if node in self.replicas
            else f"connected_slaves:{len(self.replicas) // MASTERS}" in seen
        )
        return has_peers and node.command("CLUSTER", "NODES").count("slave") == len(self.replicas)


SERVICE = "news"


class RedisSentinel:
    """A private primary with one replica, watched by one sentinel.

    Example::

        with RedisSentinel() as group:
            group.primary.kill()  # the sentinel promotes the replica
    """

    def __init__(self) -> None:
        self.primary = RedisServer(options={"repl-diskless-sync-delay": "0"})
        self.replica = RedisServer(options={"replicaof": f"{HOST} {self.primary.port}"})
        self.sentinel = RedisServer(mode=["--sentinel"])

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.sentinel.address}/{SERVICE}"

    def __enter__(self) -> RedisSentinel:
        try:
            for server in (self.primary, self.replica, self.sentinel):
                server.__enter__()
            self._watch()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in (self.sentinel, self.replica, self.primary):
            server.__exit__(kind, error, trace)

    def _watch(self) -> None:
        self.sentinel.command("SENTINEL", "MONITOR", SERVICE, HOST, str(self.primary.port), "1")
        self.sentinel.command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", "500")
        self._wait_for("role:slave", "master_link_status:up")

    def _wait_for(self, *signs: str) -> None:
        deadline_s = monotonic() + READY_S
        while not self._replica_is_known(*signs):
            if monotonic() > deadline_s:
                raise MissingServer("the replica did not join its primary")
            sleep(SETTLE_LOOK_S)

    def _replica_is_known(self, *signs: str) -> bool:
        info = self.replica.command("INFO", "replication")
        known = str(self.replica.port) in self.sentinel.command("SENTINEL", "REPLICAS", SERVICE)
        return known and all(sign in info for sign in signs)


__all__ = ["MissingServer", "RedisCluster", "RedisSentinel", "RedisServer"]
