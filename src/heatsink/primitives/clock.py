"""Time as a parameter. All other modules read the time and wait through a `Clock`."""

from __future__ import annotations

import asyncio
import ctypes
import time
from functools import cache
from pathlib import Path
from typing import Protocol, runtime_checkable

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = Path("/proc/self/ns/time")  # the boot clock may differ between namespaces
SKEW_MS_MAX = 5_000  # a clock further off than this is not believed
BELIEVE_S = 10.0  # how long a jump must last before it is believed
TIME_ERROR, STA_UNSYNC, STA_NANO = 5, 0x0040, 0x2000


class Clock(Protocol):
    """The time as a process sees it. The wall clock may be wrong, and it may jump."""

    def now_s(self) -> float: ...

    def monotonic_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


async def breathe() -> None:
    """Let other tasks run before a long computation goes on."""
    await asyncio.sleep(0)


@runtime_checkable
class Witness(Protocol):
    """What a machine knows about time besides its wall clock. A `Clock` may also be a witness."""

    def boot_id(self) -> str:
        """Return the id of the boot that `boot_s` counts from; empty if it is not known."""

    def boot_s(self) -> float:
        """Return seconds since the boot, including sleep. Nobody can set this clock."""

    def synchronised_s(self) -> float | None:
        """Return the kernel's wall clock if a service such as NTP synchronises it, else None."""


class SystemClock:
    """The clock of this machine."""

    now_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def boot_id(self) -> str:
        return _boot_id()

    def boot_s(self) -> float:
        try:
            return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
        except (AttributeError, OSError):
            return time.monotonic()

    def synchronised_s(self) -> float | None:
        return _synchronised_s()


class NoWitness:
    """The witness for a clock that knows nothing about the machine's boot or about NTP."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def boot_id(self) -> str:
        return ""

    def boot_s(self) -> float:
        return self._clock.monotonic_s()

    def synchronised_s(self) -> float | None:
        return None


def witness_of(clock: Clock) -> Witness:
    return clock if isinstance(clock, Witness) else NoWitness(clock)


def now_ms(clock: Clock) -> int:
    return int(clock.now_s() * 1000)


class SteadyTime:
    """A wall clock that ignores a jump until the jump has lasted for `BELIEVE_S`."""

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        self._jumped_s: float | None = None

    def read(self, wall_ms: int, monotonic_s: float) -> int:
        """Return the wall-clock time without jumps that are younger than `BELIEVE_S`.

        A young jump is ignored because the clock may soon jump back.
        """
        passed_ms = int(monotonic_s * 1000)
        offset_ms = wall_ms - passed_ms
        if self._offset_ms is None or abs(offset_ms - self._offset_ms) <= SKEW_MS_MAX:
            self._offset_ms, self._jumped_s = offset_ms, None
        elif self._jumped_s is None:
            self._jumped_s = monotonic_s
        elif monotonic_s - self._jumped_s >= BELIEVE_S:
            self._offset_ms, self._jumped_s = offset_ms, None
        return passed_ms + self._offset_ms


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@cache
def _boot_id() -> str:
    try:
        return f"{BOOT_ID.read_text().strip()} {TIME_NAMESPACE.readlink()}"
    except OSError:
        return _boot_session()


def _boot_session() -> str:
    """The id of the boot on macOS."""
    name, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    try:
        ask = _libc().sysctlbyname
        failed = ask(b"kern.bootsessionuuid", name, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (AttributeError, OSError, TypeError):
        return ""
    return "" if failed else name.value.decode()


class _Timex(ctypes.Structure):
    """The first fields of Linux's `struct timex`, and space for the other fields."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("fraction", ctypes.c_long),
        ("rest", ctypes.c_long * 48),
    )


def _synchronised_s() -> float | None:
    """Return the kernel's wall clock if a service such as NTP synchronises it, otherwise None.

    This calls `adjtimex` in a way that changes nothing and needs no privileges.
    """
    timex = _Timex()
    try:
        state = _libc().adjtimex(ctypes.byref(timex))
    except (AttributeError, OSError, TypeError):
        return None
    if state < 0 or state == TIME_ERROR or timex.status & STA_UNSYNC:
        return None
    return float(timex.seconds + timex.fraction / (1e9 if timex.status & STA_NANO else 1e6))
