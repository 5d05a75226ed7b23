"""A private primary with one replica, watched by one sentinel."""

from __future__ import annotations

from time import monotonic, sleep
from types import TracebackType

from heatsink.stores.embedded import MissingServer

from .redis import HOST, RedisServer

SERVICE = "news"
READY_S = 60.0
LOOK_S = 0.05


class RedisSentinel:
    """`with RedisSentinel() as group: …(group.url)`; kill `group.primary` to see a fail-over."""

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
            sleep(LOOK_S)

    def _replica_is_known(self, *signs: str) -> bool:
        info = self.replica.command("INFO", "replication")
        known = str(self.replica.port) in self.sentinel.command("SENTINEL", "REPLICAS", SERVICE)
        return known and all(sign in info for sign in signs)
