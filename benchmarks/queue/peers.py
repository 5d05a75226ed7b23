"""Who is measured: each with the settings that were its best, and versions that are locked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.environments import node_modules_of, python_of

HERE = Path(__file__).parent
DRIVERS, ENVIRONMENTS = HERE / "drivers", HERE / "environments"
CURE = {".py": "its packages do not install", ".js": "needs node and npm: apt install nodejs npm"}


class Peer(msgspec.Struct, frozen=True):
    """`items` is what it gets through in a few seconds. `packages` is empty for our own."""

    name: str
    driver: str
    items: int
    packages: str = ""

    @property
    def is_python_peer(self) -> bool:
        return self.packages.endswith(".txt")

    @property
    def missing(self) -> str:
        return f"{self.name} cannot be had here: {CURE[Path(self.driver).suffix]}"

    def command(self) -> list[str] | None:
        """What runs its driver; makes its environment the first time. None if it cannot be had."""
        script = str(DRIVERS / self.driver)
        if not self.packages:
            return [sys.executable, script]
        if self.is_python_peer:
            python = python_of(ENVIRONMENTS / self.packages)
            return [str(python), script] if python else None
        node, modules = shutil.which("node"), node_modules_of(ENVIRONMENTS / self.packages)
        if node is None or modules is None:
            return None
        return [shutil.which("env") or "env", f"NODE_PATH={modules}", node, script]


OURS = Peer("Heatsink", "ours.py", 200_000)
OURS_TOGETHER = Peer("Heatsink", "ours_together.py", 0)
OURS_RATED = Peer("Heatsink", "ours_rated.py", 0)
LOOP = Peer("loop", "loop.py", 200_000)
OURS_JOBS = Peer("Heatsink", "ours_jobs.py", 20_000)
OURS_TENANTS = Peer("Heatsink", "ours_tenants.py", 100_000)
BULLMQ = Peer("BullMQ", "with_bullmq.js", 30_000, "package-lock.json")
SAQ = Peer("SAQ", "with_saq.py", 4_000, "saq.txt")
TASKIQ = Peer("taskiq", "with_taskiq.py", 6_000, "taskiq.txt")
PEERS = (
    LOOP,
    BULLMQ,
    Peer("Huey", "with_huey.py", 12_000, "huey.txt"),
    Peer("dramatiq", "with_dramatiq.py", 10_000, "dramatiq.txt"),
    TASKIQ,
    Peer("taskiq-list", "with_taskiq_list.py", 6_000, "taskiq.txt"),
    Peer("arq", "with_arq.py", 4_000, "arq.txt"),
    SAQ,
    Peer("streaq", "with_streaq.py", 2_500, "streaq.txt"),
    Peer("Celery", "with_celery.py", 3_000, "celery.txt"),
    Peer("RQ", "with_rq.py", 1_000, "rq.txt"),
)
QUICK = ("loop", "BullMQ", "Huey", "dramatiq")


def found(wanted: Sequence[str]) -> list[tuple[Peer, list[str]]]:
    """Those that were asked for and can be had here, each with the command of its driver."""
    known = {peer.name.lower(): peer for peer in PEERS}
    if unknown := [name for name in wanted if name.lower() not in known]:
        names = ", ".join(peer.name for peer in PEERS)
        raise SystemExit(f"there is no peer {unknown[0]!r}: choose from {names}")
    commands = [(known[name.lower()], known[name.lower()].command()) for name in wanted]
    for peer, command in commands:
        if command is None:
            print(f" ({peer.missing})", end="", file=sys.stderr, flush=True)
    return [(peer, command) for peer, command in commands if command is not None]
