"""Which tests run: `--quick` leaves out slow ones and servers, a plain run those marked `full`.

A test needs a server if it, a fixture of it, or a function of the tests that these call can start
a process or listen on a port. That is read from their code, so nobody has to mark it. For what the
code does not show there is `@pytest.mark.server`; a test of `--quick` that starts a process or
listens on a port all the same fails and says so.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Generator, Hashable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import sync_playwright

from heatsink.emulator.server import running_engine
from heatsink.primitives.connections import listen
from heatsink.stores.embedded import free_port
from heatsink.testing.redis import RedisServer
from tests.planted import FULL

LISTENERS = {"socket.bind", "subprocess.Popen", "os.fork", "os.posix_spawn"}
STARTERS = {
    asyncio.create_subprocess_exec,
    asyncio.create_subprocess_shell,
    asyncio.start_server,
    free_port,
    listen,
    multiprocessing.Process,
    multiprocessing.get_context,
    os.fork,
    running_engine,
    subprocess.Popen,
    subprocess.check_call,
    subprocess.check_output,
    subprocess.run,
    sync_playwright,
    uvicorn.Server,
    RedisServer,
}
DEFAULT_PORTS = {6379, 8321, 8322, 8323}
READ = ("tests.", "heatsink.testing.")
"""Modules whose code is read: what the package itself starts is known by the names above."""


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "leave out tests that need a server, a browser or another process"
    parser.addoption("--quick", action="store_true", help=words)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full(reason): runs only with `./dev test --full`")
    config.addinivalue_line("markers", "slow(reason): does not run with `./dev test --quick`")
    config.addinivalue_line("markers", "server(reason): starts a server; its code does not show it")
    if config.getoption("--quick"):
        config.pluginmanager.register(Guard())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reader, left_out = Reader(), list[pytest.Item]()
    for item in items:
        is_full = item.get_closest_marker("full") is not None and not FULL
        if is_full or (config.getoption("--quick") and not reader.is_quick(item)):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


class Reader:
    """Finds out what code may start."""

    def __init__(self) -> None:
        self._harmless: set[object] = set()

    def is_quick(self, item: pytest.Item) -> bool:
        if item.get_closest_marker("slow") or item.get_closest_marker("server"):
            return False
        return not isinstance(item, pytest.Function) or not any(map(self.starts, roots(item)))

    def starts(self, root: object) -> bool:
        seen, waiting = set[object](), [root]
        while waiting:
            named = waiting.pop()
            found = unwrapped(named)
            if not isinstance(named, Hashable) or not isinstance(found, Hashable):
                continue
            if named in STARTERS or found in STARTERS:
                return True
            if found not in seen and found not in self._harmless:
                seen.add(found)
                waiting += parts(found)
        self._harmless |= seen
        return False


def roots(item: pytest.Function) -> Iterator[object]:
    """The test, its fixtures, those that a parameter names, and functions that are parameters."""
    manager = item.session._fixturemanager
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = [each for each in parameters if isinstance(each, str)]
    yield item.function
    yield from (each for each in parameters if isinstance(each, FunctionType | type))
    for name in [*item.fixturenames, *named]:
        for fixture in manager.getfixturedefs(name, item) or ():
            yield fixture.func


def parts(found: object) -> Iterator[object]:
    """What a function or class of the tests refers to."""
    if not (getattr(found, "__module__", None) or "").startswith(READ):
        return
    if isinstance(found, type):
        yield from (each for each in vars(found).values() if callable(each))
    elif isinstance(found, FunctionType):
        names = set(names_in(found.__code__))
        for name in names:
            value = found.__globals__.get(name, sys.modules.get(name))
            if isinstance(value, ModuleType):
                yield from filter(callable, (getattr(value, each, None) for each in names))
            elif callable(value):
                yield value


def unwrapped(found: object) -> object:
    """Without what `contextmanager`, `partial` and their like put around a function."""
    while True:
        inner = getattr(found, "__wrapped__", None) or getattr(found, "func", None)
        if inner is None or not isinstance(found, FunctionType | partial):
            return found
        found = inner


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def is_ours(address: object) -> bool:
    """Whether somebody may run a Heatsink of their own there, which no test may meet."""
    return isinstance(address, tuple) and address[1] in DEFAULT_PORTS


class Guard:
    """Fails tests of `--quick` that start a process, listen, or call a port that is a default."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in LISTENERS or (event == "socket.connect" and is_ours(arguments[1])):
            self._seen.append(f"{event} {arguments[:2]!r:.100}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._seen.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        yield
        if self._seen:
            pytest.fail(f"needs @pytest.mark.server: {self._seen[0]}", pytrace=False)
