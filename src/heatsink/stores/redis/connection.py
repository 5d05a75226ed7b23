"""One process's connection to Redis. It runs commands and raises `heatsink.errors`.

After a failure, calls fail immediately for about 0.1 s, and after repeated failures for up to 2 s.
So callers that can do without Redis lose no time. The driver's own retries are off.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from socket import gaierror
from typing import Any, NamedTuple, Protocol

from redis import exceptions
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from heatsink.errors import Closed, InvalidSetting, NoAccess, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.primitives.owner import Owner
from heatsink.primitives.retry import Pauses

from .address import RedisAddress, check_authority, distrust
from .prompt import CONNECT_S, PromptRedis

logger = logging.getLogger("heatsink")
Word = str | bytes | int
CALLS_MAX = 16  # concurrent calls: each uses its own connection
TOGETHER_MAX = 128  # commands in a pipeline: other clients wait while Redis runs it
PAUSES = Pauses(0.1, 2.0, jitter=0.5)
FAILURES = (  # errors of a cluster do not derive from RedisError
    exceptions.RedisError,
    exceptions.RedisClusterException,
    OSError,
    TimeoutError,
)
ANSWERS = (exceptions.ResponseError, exceptions.DataError)
MOMENTARY = (
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
)
TOPOLOGY = "CLUSTER SLOTS"
RAW = ("XRANGE", "XREVRANGE")
NAMED = {
    exceptions.NoPermissionError: "NOPERM",
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.MovedError: "MOVED",
}
EXPECTED = ("NOSCRIPT", "OLDER", "PLACE")
PERMISSIONS = "docs/how-to/redis.md"
LOGIN = (exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError)


class RedisRefused(Unavailable):
    """Redis replied with an error, `said`. `code` is its first word: NOGROUP, NOPERM, …

    If an XADD failed because its id is not above the stream's last id, `code` is OLDER.
    """

    def __init__(self, message: str, code: str, said: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.said = said


class Driver(Protocol):
    async def initialize(self) -> Any: ...

    async def execute_command(self, *words: Any, **options: Any) -> Any: ...

    def pipeline(self, transaction: Any = None) -> Any: ...

    def set_response_callback(self, command: str, callback: Any) -> None: ...

    async def aclose(self) -> None: ...


class _Gathered(NamedTuple):
    """A command that waits for its pipeline."""

    words: tuple[Word, ...]
    answer: asyncio.Future[Any]


class Connection:
    """Runs commands on one Redis. The first command opens the connection."""

    def __init__(
        self, address: RedisAddress, clock: Clock, rng: Random, permissions: str = PERMISSIONS
    ) -> None:
        """`permissions` is the page that errors name if the user lacks a permission."""
        check_authority(address)
        self._address = address
        self._permissions = permissions
        self._clock = clock
        self._rng = rng
        self._owner = Owner()
        self._driver: Driver | None = None
        self._opening = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._gathered: list[_Gathered] = []
        self._pipelines: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._failures = 0
        self._told: set[str] = set()  # kinds of failure logged in this outage, each once
        self._refused: set[str] = set()  # permanent refusals that were logged, each once
        self._resume_s = float("-inf")

    async def run(self, *words: Word) -> Any:
        """Run one command and return its reply. Without `words`, only connect.

        In a cluster, connecting also reads the list of nodes. Raises `Unavailable`,
        `RedisRefused` or, if the login or TLS fails, `NoAccess`.
        """
        self._owner.check()
        command = str(words[0]) if words else TOPOLOGY
        return await self._answer(self._execute, words, command)

    async def run_together(self, *words: Word) -> Any:
        """Run one command in a pipeline with all commands that other callers send at this moment.

        A thousand commands then cost little more than a few. If a command fails, the others are not
        affected. If an answer is urgent, use `run`: the answer of a pipeline comes only when the
        whole pipeline has run.
        """
        self._owner.check()
        gathered = _Gathered(words, asyncio.get_running_loop().create_future())
        self._gathered.append(gathered)
        if len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._send_gathered)
        return await gathered.answer

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for at in range(0, len(gathered), TOGETHER_MAX):
            task = asyncio.ensure_future(self._run_pipeline(gathered[at : at + TOGETHER_MAX]))
            self._pipelines.add(task)
            task.add_done_callback(self._pipelines.discard)

    async def _run_pipeline(self, gathered: list[_Gathered]) -> None:
        waiting = [each for each in gathered if not each.answer.done()]
        try:
            commands = [each.words for each in waiting]
            answers = await self._answer(self._execute_all, commands, str(commands[0][0]))
        except Exception as error:
            answers = [error] * len(waiting)
        for each, answer in zip(waiting, answers, strict=True):
            if each.answer.done():
                continue
            if isinstance(answer, FAILURES):
                each.answer.set_exception(self._translated(answer, str(each.words[0])))
            elif isinstance(answer, Exception):
                each.answer.set_exception(answer)
            else:
                each.answer.set_result(answer)

    async def _answer(
        self, execute: Callable[[Any], Coroutine[Any, Any, Any]], words: Any, command: str
    ) -> Any:
        async with self._turns:
            if self._is_closed:
                raise Closed.meanwhile(f"the connection to Redis at {self._address}")
            if self._clock.monotonic_s() < self._resume_s:
                raise Unavailable(f"Redis at {self._address} failed a moment ago: retry later")
            try:
                answer = await self._send(execute(words))
            except FAILURES as error:
                raise self._translated(error, command) from None
            self._succeed()
            return answer

    async def _send(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a command with a timeout.

        The command runs in a task of its own, since some drivers swallow a cancellation.
        `PromptRedis` does not, and has a timeout.
        """
        if isinstance(self._driver, PromptRedis):
            return await work
        call = asyncio.ensure_future(work)
        self._calls.add(call)
        call.add_done_callback(self._end)
        try:
            patience_s = 2 * (CONNECT_S + self._address.options.timeout_s)
            done, _ = await asyncio.wait({call}, timeout=patience_s)
        finally:
            call.cancel()
        if not done:
            raise TimeoutError
        return call.result()

    def _end(self, call: asyncio.Task[Any]) -> None:
        """Retrieve the error of an abandoned call, so that asyncio does not log it."""
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()

    async def _execute(self, words: tuple[Word, ...]) -> Any:
        driver = self._driver or await self._open()
        return await driver.execute_command(*words) if words else None

    async def _execute_all(self, commands: Sequence[tuple[Word, ...]]) -> list[Any]:
        """Run commands in a pipeline; in a cluster concurrently, since they are for many nodes."""
        driver = self._driver or await self._open()
        if self._address.kind == "cluster" or len(commands) == 1:
            calls = (driver.execute_command(*words) for words in commands)
            answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        else:
            pipeline = driver.pipeline(transaction=False)
            for words in commands:
                pipeline.execute_command(*words)
            answers = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, FAILURES) and not is_final(answer):
                raise answer
        return answers

    async def _open(self) -> Driver:
        """Return the driver, and open it at the first call.

        A lock makes concurrent first calls wait, so that a cluster's topology is read only once.
        """
        async with self._opening:
            if self._driver is None:
                driver = open_driver(self._address)
                try:
                    await driver.initialize()
                except BaseException:
                    await _close(driver)
                    raise
                self._driver = driver
            return self._driver

    def _said(self, refusal: RedisRefused, command: str) -> RedisRefused:
        """Return `refusal`, and log the first refusal of its kind.

        Redis will refuse the same command again, and most callers ignore the error.
        """
        what = command if refusal.code == "NOPERM" else refusal.code
        if refusal.code not in EXPECTED and what not in self._refused:
            self._refused.add(what)
            logger.warning("%s", refusal)
        return refusal

    def _translated(self, error: Exception, command: str) -> Exception:
        where = f"Redis at {self._address}"
        if isinstance(error, LOGIN) or "WRONGPASS" in str(error) or "NOAUTH" in str(error):
            self._fail("it refuses the user or the password")
            return NoAccess(f"{where} refuses the user or the password: check the Redis URL")
        if untrusted := distrust(error):
            self._fail("its certificate is not trusted")
            return NoAccess(f"{where} {untrusted}")
        if is_final(error):
            refusal = refusal_of(error, where, command, self._permissions)
            return self._said(refusal, command)
        reason = _reason(error)
        self._fail(reason, kind=type(error).__name__)
        text = f"{where} did not answer {command} ({reason}): retry later, or check its URL"
        return Unavailable(text)

    def _fail(self, reason: str, kind: str = "") -> None:
        if (kind or reason) not in self._told:
            self._told.add(kind or reason)
            logger.warning("Redis at %s is unavailable (%s)", self._address, reason)
        now_s = self._clock.monotonic_s()
        if now_s < self._resume_s:
            return  # concurrent calls that fail together count once
        self._failures += 1
        self._resume_s = now_s + PAUSES.after(self._failures, self._rng)

    def _succeed(self) -> None:
        if self._failures:
            logger.warning("Redis at %s is available again", self._address)
        self._failures = 0
        self._told.clear()

    async def nodes(self, key: str = "") -> list[RedisAddress]:
        """Return the addresses of all primary servers, or of the one server that holds `key`."""
        if self._address.kind != "cluster":
            return [self._address]
        if self._driver is None:
            await self.run()
        cluster: Any = self._driver
        try:
            nodes = [cluster.get_node_from_key(key)] if key else cluster.get_primaries()
        except exceptions.RedisError as error:
            raise self._translated(error, TOPOLOGY) from None
        return [self._address.node(node.host, node.port) for node in nodes]

    async def close(self) -> None:
        """Refuse new calls, wait for those that run, and close the connection.

        The driver is dropped last. If it were dropped earlier, a call that has not begun yet would
        open another driver, which nobody would close.
        """
        self._is_closed = True
        try:
            await asyncio.gather(*self._calls, return_exceptions=True)
            await asyncio.gather(*self._pipelines, return_exceptions=True)
        finally:
            driver, self._driver = self._driver, None
            if driver is not None:
                await _close(driver)


async def _close(driver: Driver) -> None:
    """Close the driver and, for a cluster, the connections to its nodes.

    After a failed command, the cluster driver's own `aclose` does nothing.
    """
    await driver.aclose()
    if isinstance(driver, RedisCluster):
        await driver.nodes_manager.aclose()
        await driver.nodes_manager.aclose("startup_nodes")


def is_final(error: Exception) -> bool:
    """Return whether Redis refused the command, and will refuse it again."""
    return isinstance(error, ANSWERS) and not isinstance(error, MOMENTARY)


def _reason(error: Exception) -> str:
    """Return the system's reason, such as "Connection refused"; otherwise type and message."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, gaierror) and cause.strerror:  # its number is not one of the system's
        return cause.strerror
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    said = str(error).strip().rstrip(".")
    return f"{type(error).__name__}: {said[:120]}" if said else type(error).__name__


def refusal_of(
    error: Exception, where: str, command: str, permissions: str = PERMISSIONS
) -> RedisRefused:
    named = (code for kind, code in NAMED.items() if isinstance(error, kind))
    unnamed = "OLDER" if "equal or smaller" in str(error) else str(error).split(" ")[0]
    code = next(named, unnamed)
    hints = {
        "NOPERM": f"its user lacks the permission: see the ACL lines in {permissions}",
        "MOVED": "it is a node of a cluster: use redis+cluster:// in the Redis URL",
    }
    message = f"{where} refuses {command}: {hints.get(code, str(error)[:120])}"
    return RedisRefused(message, code, str(error))


class KnownKeys:
    """Finds the key in a command. The key decides which node of a cluster gets the command.

    The driver's own finder asks the cluster's first primary about all commands at the start. While
    that primary is down, every command would fail, even if Heatsink's keys are on another node.
    """

    async def initialize(self, _: object = None) -> None:
        """Do nothing: this finder makes no requests."""

    async def get_keys(self, *words: Any) -> tuple[Any, ...]:
        """Return the first key of the command. One is enough, since all keys are in one slot."""
        return words[1:2]


def open_driver(address: RedisAddress) -> Driver:
    """Return a driver for the address. The driver connects at the first command."""
    driver = _driver(address)
    for command in RAW:
        driver.set_response_callback(command, _as_it_came)
    return driver


def _as_it_came(answer: Any, **_: Any) -> Any:
    """Return a raw reply unchanged.

    It replaces the driver's parsers of stream replies, which differ between the driver's versions.
    """
    return answer


def _driver(address: RedisAddress) -> Driver:
    shared = _shared_options(address)
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # By default, every fifth MOVED closes all connections, also those that are in use.
        cluster: Any = RedisCluster(startup_nodes=nodes, reinitialize_steps=0, **shared)
        cluster.commands_parser = KnownKeys()
        driver: Driver = cluster
        return driver
    if address.kind == "sentinel":
        return _through_sentinel(address, shared)
    if len(address.hosts) > 1:
        raise InvalidSetting(
            "a redis:// URL takes one host: use redis+cluster:// or redis+sentinel:// for several"
        )
    return PromptRedis(address, **shared)


def _through_sentinel(address: RedisAddress, shared: dict[str, Any]) -> Driver:
    """Return a client of the primary that the sentinels name.

    Closing the client also closes the connections to the sentinels.
    """
    make: Any = Sentinel
    sentinel = make(list(address.hosts), sentinel_kwargs=_bare(shared), **shared)
    primary = sentinel.master_for(address.service)
    close = primary.aclose

    async def close_all() -> None:
        await close()
        for watcher in sentinel.sentinels:
            await watcher.aclose()

    async def reach_one() -> None:
        await _reach_one(sentinel.sentinels)

    primary.initialize, primary.aclose = reach_one, close_all
    driver: Driver = primary
    return driver


async def _reach_one(sentinels: list[Redis]) -> None:
    """Ping the sentinels until one responds. If none does, raise the last error.

    The driver's own error would not say why no sentinel could be reached.
    """
    for number, sentinel in enumerate(sentinels, 1):
        try:
            await sentinel.ping()
            return
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            if number == len(sentinels):
                raise


def _shared_options(address: RedisAddress) -> dict[str, Any]:
    """Return the options that all drivers get.

    With the protocol RESP2, replies are the same in all versions since Redis 7.0.
    """
    options: dict[str, Any] = {
        "protocol": 2,
        "username": address.user or None,
        "password": address.password or None,
        "socket_timeout": address.options.timeout_s,
        "socket_connect_timeout": CONNECT_S,
        "retry": Retry(NoBackoff(), 0),
    }
    if address.tls:
        options["ssl"] = True
        if address.options.ca:
            options["ssl_ca_certs"] = address.options.ca
    return options


def _bare(shared: dict[str, Any]) -> dict[str, Any]:
    """Return the options without user and password, for sentinels.

    The login in the URL is for the servers, not for the sentinels.
    """
    return {name: value for name, value in shared.items() if name not in ("username", "password")}
