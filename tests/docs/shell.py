"""Shell blocks, run as a reader runs them: one after the other, in a folder that is new."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .pages import Block

TIMEOUT_S = 150
BETWEEN = "--- the next block ---"
PORTS = {"8321": "HEATSINK_SERVE_PORT", "8322": "HEATSINK_DYNAMO_PORT"}
HEAD = """\
set -euo pipefail -o monitor
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
"""
UNTIL_LISTENING = "until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done"


def run(blocks: Iterable[Block], folder: Path, ports: dict[str, int]) -> list[str]:
    """What each shell block printed. Python blocks are saved as the line above them says."""
    script = [HEAD]
    for block in blocks:
        if block.language == "python":
            (name,) = re.findall(r"`(\w+\.py)`", block.before)
            script.append(f"cat > {name} <<'END OF FILE'\n{block.text}\nEND OF FILE")
        elif block.language == "sh" and block.is_run:
            script += [_with_ports(block.text, ports), f"echo '{BETWEEN}'"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=_environment(ports),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(f"{BETWEEN}\n")[:-1]


def _with_ports(text: str, ports: dict[str, int]) -> str:
    """Ports of our own, and after a server has been started a wait until it listens."""
    lines = []
    for line in text.splitlines():
        lines.append(re.sub("|".join(ports), lambda found: str(ports[found[0]]), line))
        server = re.match(r"heatsink (serve|dynamo)\b[^#]*&", line)
        if server and "--port" not in line:
            port = ports["8321" if server[1] == "serve" else "8322"]
            lines.append(UNTIL_LISTENING.format(port=port))
    return "\n".join(lines)


def _environment(ports: dict[str, int]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    chosen = {PORTS[port]: str(ports[port]) for port in PORTS}
    server = f"http://127.0.0.1:{ports['8321']}"
    return {**os.environ, **chosen, "PATH": path, "HEATSINK_SERVER": server, "COLUMNS": "200"}
