"""A private cluster of three masters without replicas."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, sleep
from types import TracebackType
from urllib.parse import quote

from heatsink.stores.embedded import MissingServer

from .redis import HOST, RedisServer

MASTERS = 3
SLOTS = 16_384
READY_S = 60.0
LOOK_S = 0.05


class RedisCluster:
    """`with RedisCluster() as cluster: …(cluster.url)`. It takes two seconds to be ready."""

    def __init__(self, acl: Sequence[str] = ()) -> None:
        self.masters = [RedisServer(acl=acl, clustered=True) for _ in range(MASTERS)]

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
            for master in self.masters:
                master.__enter__()
            self._share_slots()
            self._introduce()
            self._wait_until_ready()
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
        for master in self.masters:
            master.__exit__(kind, error, trace)

    def _share_slots(self) -> None:
        for n, master in enumerate(self.masters):
            first, last = n * SLOTS // MASTERS, (n + 1) * SLOTS // MASTERS - 1
            master.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))

    def _introduce(self) -> None:
        for master in self.masters[1:]:
            ports = str(master.port), str(master.bus_port)
            self.masters[0].command("CLUSTER", "MEET", HOST, *ports)

    def _wait_until_ready(self) -> None:
        deadline_s = monotonic() + READY_S
        while not all(self._is_ready(master) for master in self.masters):
            if monotonic() > deadline_s:
                seen = [master.command("CLUSTER", "INFO") for master in self.masters]
                raise MissingServer(f"the cluster did not become ready: {seen}")
            sleep(LOOK_S)

    def _is_ready(self, master: RedisServer) -> bool:
        info = master.command("CLUSTER", "INFO")
        return "cluster_state:ok" in info and f"cluster_known_nodes:{MASTERS}" in info
