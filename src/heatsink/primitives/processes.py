"""Runs functions of the application in processes of their own, for work that needs a CPU for long.

A process gets the name of a function and its arguments, pickled, over a socket. It imports the
module of the function and returns the result. So the function must stand at the top level of a
module. A process runs one function at a time and is used again.

If the caller is cancelled, or the time is up, the process is killed: unlike a thread, a process can
be stopped. If a process dies, only the call that ran in it fails. Processes end with their parent,
however the parent ends. A terminal or a service manager may also send SIGINT and SIGTERM to them.
They ignore these signals: the parent decides when they end.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from traceback import format_exception
from typing import IO, Any, NamedTuple

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown

DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
LOOK_S = 0.5
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from heatsink.primitives.processes import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
)
_size = struct.Struct(">Q")


class ProcessDied(Exception):
    """The process ended while it ran a function."""


class TookTooLong(Exception):
    """The time of a function was up, and its process was killed."""


class NotPassed(Exception):
    """The arguments or the result of a function cannot be passed to another process."""


class RaisedInProcess(Exception):
    """Stands for an exception that cannot be passed to another process."""


class Name(NamedTuple):
    """Where a function stands: its module, and its name in this module."""

    module: str
    path: str

    def find(self) -> Any:
        return reduce(getattr, self.path.split("."), importlib.import_module(self.module))


def name_of(what: str, function: Any) -> Name:
    """Return the name by which another process finds a function.

    Raises `InvalidSetting` if there is no such name. `what` says in the message what the function
    is for.
    """
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or "<" in path:
        raise InvalidSetting(
            f"{what} must be a function at the top level of a module, which a process can import, "
            f"not {path or shown(function)}: a lambda or a nested function has no such name",
            field="process",
        )
    if module == "__main__":
        raise InvalidSetting(
            f"{what} must be in a module that a process can import: move {path} from the program "
            "that is run to a module of its own",
            field="process",
        )
    return Name(module, path)


class Job(NamedTuple):
    """A call that runs in a process: `around` are functions that return context managers."""

    function: Name
    arguments: tuple[Any, ...]
    around: tuple[Name, ...] = ()


class ProcessPool:
    """At most `size` processes, started when they are needed; further calls wait for their turn.

    A new process imports the modules of `imports`, in their order.
    """

    def __init__(self, size: int, imports: Sequence[str] = ()) -> None:
        self._imports = list(imports)
        self._turns = asyncio.Semaphore(size)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, job: Job, timeout_s: float) -> Any:
        """Run a function in a process, and return its result or raise its exception.

        `timeout_s` counts from when the function starts, not while the call waits for a process.
        Raises `TookTooLong` if the function runs longer, `ProcessDied` if the process dies, and
        `NotPassed` if the arguments or the result cannot be pickled.
        """
        frame = _pickled(job, "the item")
        async with self._turns:
            process = await self._process()
            try:
                async with asyncio.timeout(timeout_s):
                    is_result, answer = await process.ask(frame)
            except TimeoutError:
                self._kill(process)
                raise TookTooLong from None
            except BaseException:
                self._kill(process)
                raise
            self._idle.append(process)
        if is_result:
            return answer
        raise answer

    async def close(self) -> None:
        """Kill all processes."""
        for process in list(self._all):
            self._kill(process)
        await asyncio.gather(*self._ending)

    async def _process(self) -> _Process:
        while self._idle:
            if (process := self._idle.pop()).is_alive:
                return process
            self._kill(process)
        process = await _Process.start()
        self._all.add(process)
        try:
            is_result, error = await process.ask(_pickled(self._imports, "a module"))
        except BaseException:
            self._kill(process)
            raise
        if is_result:
            return process
        self._kill(process)
        raise error

    def _kill(self, process: _Process) -> None:
        self._all.discard(process)
        task = asyncio.ensure_future(process.kill())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class _Process:
    """A process, as its parent sees it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Process:
        mine, its = socket.socketpair()
        try:
            numbers = str(its.fileno()), str(os.getpid())
            command = [sys.executable, "-c", BOOT, *numbers, json.dumps(sys.path)]
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=[its.fileno()], stdin=asyncio.subprocess.DEVNULL
            )
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
        return cls(process, *await asyncio.open_unix_connection(sock=mine))

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and not self._reader.at_eof()

    async def ask(self, frame: bytes) -> tuple[bool, Any]:
        """Send a frame. Returns whether the answer is a result, and the result or the exception."""
        try:
            self._writer.write(frame)
            await self._writer.drain()
            head = await self._reader.readexactly(_size.size)
            text = await self._reader.readexactly(*_size.unpack(head))
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            how = f"exited with {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
            raise ProcessDied(f"the process of the handler {how}") from None
        is_result, answer = pickle.loads(text)  # noqa: S301 - from a process of ours
        return is_result, answer

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        self._writer.close()
        await self._process.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _framed(text: bytes) -> bytes:
    return _size.pack(len(text)) + text


def _pickled(value: object, what: str) -> bytes:
    try:
        return _framed(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # __reduce__ of the application may raise anything
        raise NotPassed(f"{what} cannot be passed to a process: {error}") from None


# -- in the process ----------------------------------------------------------------------------


def serve(number: int, parent: int) -> None:
    """Run what the parent sends over the socket with this file number, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tie_to(parent)
    with socket.socket(fileno=number) as link, link.makefile("rb") as frames:
        while text := _next(frames):
            link.sendall(_answer(text))


def _next(frames: IO[bytes]) -> bytes:
    head = frames.read(_size.size)
    return frames.read(*_size.unpack(head)) if len(head) == _size.size else b""


def _answer(text: bytes) -> bytes:
    try:
        return _pickled((True, _done(pickle.loads(text))), "the result")  # noqa: S301 - the parent's
    except BaseException as error:  # passed on to the caller
        return _framed(_passable(error))


def _done(what: Any) -> Any:
    if not isinstance(what, Job):
        for module in what:
            importlib.import_module(module)
        return None
    function: Callable[..., Any] = what.function.find()
    return _inside([name.find() for name in what.around], function, what.arguments)


def _inside(
    around: Sequence[Callable[..., Any]], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    if not around:
        return function(*arguments)
    with around[0](arguments[-1]):
        return _inside(around[1:], function, arguments)
    return None


def _passable(error: BaseException) -> bytes:
    """Return the exception with its traceback as a note. Replace one that cannot be pickled."""
    trace = f"In the process:\n{''.join(format_exception(error))}"
    try:
        error.add_note(trace)
        text = pickle.dumps((False, error))
        pickle.loads(text)  # noqa: S301 - our own
    except Exception:
        other = RaisedInProcess(f"{type(error).__name__}: {error}")
        other.add_note(trace)
        text = pickle.dumps((False, other))
    return text


def tie_to(parent: int) -> None:
    """Make this process end when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
    else:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _follow(parent: int) -> None:
    wait = threading.Event()
    while os.getppid() == parent:
        wait.wait(LOOK_S)
    os._exit(1)
