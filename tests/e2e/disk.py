"""A server whose power fails: its files are cut back to what it had fsynced.

What is durable is observed, not guessed: `disk.c`, preloaded into the server, records every fsync.
The model of the disk is harsh and realistic:

- Of a file's bytes those survive that it had when an fsync or fdatasync of it was *called*, once
  that call has returned. All others are lost. sync_file_range promises nothing.
- Creations and renames in the folder of the append-only files survive once the folder was fsynced.
  Before that they are undone: a file that a rename replaced is back, a new one is gone.
- Unlinks survive at once.
- What is in the folder when the server starts is durable, and the folder itself is.

Without a C compiler `MarkedServer` is a weaker observer: it stops the server from calling fsync at
a marked moment, so whatever it confirms with WAITAOF lies before the mark, and cuts there. It sees
no rewrites.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import msgspec

from heatsink.testing.redis import RedisServer

SOURCE = Path(__file__).with_name("disk.c")
FOLDER = "appendonlydir"
LOG = ".incr.aof"  # what was written since the latest snapshot, ".base.rdb"
OPTIONS = {"appendfsync": "everysec", "auto-aof-rewrite-percentage": "0", "rdbcompression": "no"}
MARK = re.compile(rb"~([\w-]+)~(\d+)~")
GONE_S = 10.0
LOOK_S = 0.005


class File(msgspec.Struct, frozen=True):
    """An inode and how many bytes it has."""

    inode: int
    size: int


class Durable(msgspec.Struct, frozen=True):
    """What a power failure leaves: the size of each inode, and the folder's names."""

    sizes: Mapping[int, int]
    names: Mapping[str, int]


def what_is_durable(before: Mapping[str, File], record: Iterable[str]) -> Durable:
    """From what was durable at the start and the lines that `disk.c` wrote since."""
    sizes = {file.inode: file.size for file in before.values()}
    names = {name: file.inode for name, file in before.items()}
    for line in record:
        verb, *words = line.split()
        if verb == "sync":
            sizes[int(words[0])] = int(words[1])
        elif verb == "cut":
            inode, length = int(words[0]), int(words[1])
            sizes[inode] = min(sizes.get(inode, 0), length)
        elif verb == "gone":
            sizes.pop(int(words[0]), None)
        elif verb == "dir":
            pairs = (word.rpartition("=") for word in words[1:])
            names = {name: int(inode) for name, _, inode in pairs}
    return Durable(sizes, names)


def after_power_failure(durable: Durable, present: Mapping[int, int]) -> dict[str, File]:
    """The folder as it is found again. `present` are the inodes that still exist, and their sizes.

    A name whose inode is gone was unlinked, which survives.
    """
    return {
        name: File(inode, min(durable.sizes.get(inode, 0), present[inode]))
        for name, inode in durable.names.items()
        if inode in present
    }


def marks(data: bytes) -> frozenset[tuple[str, int]]:
    """The items in these bytes: batch and index, as `mark` wrote them into their bodies."""
    return frozenset((batch.decode(), int(index)) for batch, index in MARK.findall(data))


def mark(batch: str, index: int) -> str:
    """Text that names an item wherever a server stores it."""
    return f"~{batch}~{index}~"


class Cut(msgspec.Struct, frozen=True):
    """What a power failure took."""

    size: int
    """Bytes of logs."""
    items: frozenset[tuple[str, int]]
    """Batch and index of the items in these bytes."""
    is_rewriting: bool = False
    """Whether the log was being rewritten."""
    is_undone: bool = False
    """Whether the folder has other files than the server saw."""


class NoCompiler(Exception):
    """`disk.c` cannot be compiled here."""


def compiled(folder: Path) -> Path:
    """The observer as a library. Raises `NoCompiler`, with the cure."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompiler("there is no C compiler: apt-get install gcc libc6-dev, or set CC")
    library = folder / "disk.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompiler(f"{compiler} cannot compile {SOURCE.name}: {done.stderr[-500:]}")
    return library


class MortalServer(RedisServer):
    """`mark()`, `fail_power()`, `start()`: it comes back with what was durable."""

    def __init__(self) -> None:
        super().__init__(append_only=True, options=OPTIONS)

    @property
    def files(self) -> Path:
        return self.path / FOLDER

    def mark(self) -> None:
        """The power will fail soon."""

    def fail_power(self) -> Cut:
        raise NotImplementedError

    def kill_all(self) -> list[int]:
        """SIGKILL to it and to the child that rewrites its log: the pids of such children."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        process.send_signal(signal.SIGSTOP)  # it starts no more children
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children = [int(pid) for pid in path.read_text().split()] if path.exists() else []
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.kill()
        give_up_s = monotonic() + GONE_S
        while any(map(_is_alive, children)) and monotonic() < give_up_s:
            sleep(LOOK_S)
        return children

    def __exit__(self, *about: object) -> None:
        self.kill_all()
        super().__exit__(None, None, None)


class ObservedServer(MortalServer):
    """Cut back to what `disk.c` saw it make durable. Every fsync takes `slow_ms` longer."""

    def __init__(self, library: Path) -> None:
        super().__init__()
        self.slow_ms = 0
        self._library = library
        self._before: dict[str, File] = {}

    @property
    def _saved(self) -> Path:
        return self.path / "saved"

    @property
    def _record(self) -> Path:
        return self.path / "record"

    def start(self) -> None:
        self.kill_all()
        shutil.rmtree(self._saved, ignore_errors=True)
        self._saved.mkdir()
        self._record.write_text("")
        self.files.mkdir(exist_ok=True)
        self._before = _found(self.files)
        super().start()

    def _command(self, config: Path) -> list[str | Path]:
        about = {
            "LD_PRELOAD": self._library,
            "DISK_RECORD": self._record,
            "DISK_FOLDER": self.path,
            "DISK_SAVED": self._saved,
            "DISK_SLOW_MS": self.slow_ms,
        }
        settings = [f"{name}={value}" for name, value in about.items()]
        return ["/usr/bin/env", *settings, *super()._command(config)]

    def fail_power(self) -> Cut:
        is_rewriting = bool(self.kill_all() or list(self.path.glob("temp-*")))
        durable = what_is_durable(self._before, self._record.read_text().splitlines())
        found = _found(self.files)
        places = {int(path.name): path for path in self._saved.iterdir()}
        places |= {file.inode: self.files / name for name, file in found.items()}
        present = {inode: path.stat().st_size for inode, path in places.items()}
        left = after_power_failure(durable, present)
        kept = {file.inode: file.size for file in left.values()}
        logs = {file.inode for name, file in found.items() if name.endswith(LOG)}
        taken = b"".join(_tail(places[inode], kept.get(inode, 0)) for inode in logs)
        self._rebuild(left, places)
        return Cut(
            size=len(taken),
            items=marks(taken),
            is_rewriting=is_rewriting or len(logs) > 1,
            is_undone={(name, file.inode) for name, file in found.items()}
            != {(name, file.inode) for name, file in left.items()},
        )

    def _rebuild(self, left: Mapping[str, File], places: Mapping[int, Path]) -> None:
        fresh = self.path / "fresh"
        fresh.mkdir()
        for name, file in left.items():
            os.link(places[file.inode], fresh / name)
            os.truncate(fresh / name, file.size)
        shutil.rmtree(self.files)
        fresh.rename(self.files)
        for unnamed in self.path.glob("temp-*"):
            unnamed.unlink()


class MarkedServer(MortalServer):
    """Cut back to its size when it was told to call fsync no more. Do not rewrite its log."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[str, File] = {}

    def mark(self) -> None:
        """From now on WAITAOF confirms nothing: all that it confirmed is before the mark."""
        self.command("CONFIG", "SET", "appendfsync", "no")
        self._sizes = _found(self.files)

    def fail_power(self) -> Cut:
        self.kill_all()
        size, taken = 0, b""
        for name, file in self._sizes.items():
            tail = _tail(self.files / name, file.size)
            size, taken = size + len(tail), taken + tail
            os.truncate(self.files / name, file.size)
        return Cut(size, marks(taken))


def best_observer(folder: Path) -> Callable[[], MortalServer]:
    """Makes servers that are observed as well as this machine can."""
    try:
        library = compiled(folder)
    except NoCompiler:
        return MarkedServer
    return lambda: ObservedServer(library)


def _is_alive(pid: int) -> bool:
    """A zombie writes no more."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _found(folder: Path) -> dict[str, File]:
    about = {path.name: path.stat() for path in folder.iterdir()}
    return {name: File(stat.st_ino, stat.st_size) for name, stat in about.items()}


def _tail(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read()
