"""The programs of docs/how-to/report-heat.md, run as they stand there beside a deployment.

Node is the one that Playwright brings. `redis-cli` is the installed one, or Valkey's; where neither
is installed, a stand-in sends the same words, so that at least the words are tested.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import playwright
import pytest

from heatsink.testing.redis import RedisServer
from tests.processes import Served, serving
from tests.servers import real
from tests.waiting import until

from .pages import DOCS, Block, blocks

PAGE = DOCS / "how-to" / "report-heat.md"
STAND_IN = f"""#!{sys.executable}
import socket, sys
from urllib.parse import urlsplit
flag, url, *words = sys.argv[1:]
assert flag == "-u"
words = [word.encode() for word in words]
text = b"*%d\\r\\n" % len(words) + b"".join(b"$%d\\r\\n%b\\r\\n" % (len(w), w) for w in words)
with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as redis:
    redis.sendall(text)
    answer = redis.recv(1_000)
sys.exit(answer.decode() if answer.startswith(b"-") else 0)
"""
TRAFFIC = 'setInterval(() => { for (let n = 0; n < 95; n++) count("conv_node"); }, 100);'
NODE = Path(playwright.__file__).parent / "driver" / "node"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, RedisServer]]:
    folder = tmp_path_factory.mktemp("deployment")
    with real(RedisServer) as redis:
        flags = ("--store", f"sqlite:///{folder}/x.db", "--news", redis.url)
        with serving(folder, *flags) as served:
            yield served, redis


def block_with(word: str) -> Block:
    (found,) = [block for block in blocks(PAGE) if word in block.text]
    return found


def buckets(served: Served, key: str) -> int:
    found: int = httpx.get(f"{served.url}/v1/keys/{key}").json()["buckets"]
    return found


def environment(folder: Path, redis: RedisServer) -> dict[str, str]:
    """With a `redis-cli` on the path."""
    command = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if command is None:
        (folder / "redis-cli").write_text(STAND_IN)
        (folder / "redis-cli").chmod(0o755)
    else:
        (folder / "redis-cli").symlink_to(command)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "REDIS_URL": redis.url}


@pytest.mark.parametrize("command", ["redis-cli", "curl"])
def test_a_key_that_a_shell_reports_is_spread(
    command: str, deployment: tuple[Served, RedisServer], tmp_path: Path
) -> None:
    served, redis = deployment
    key = f"conv_{command}"
    text = block_with(f"{command} -").text.replace("conv_abc123", key)
    text = text.replace("http://127.0.0.1:8321", served.url)
    env = environment(tmp_path, redis)

    def is_spread() -> bool:
        """A report counts in its own second, which ends while a busy machine starts a shell."""
        subprocess.run(["bash", "-c", text], env=env, check=True, capture_output=True)
        return buckets(served, key) > 1

    until(is_spread, f"{key} is spread")


@contextmanager
def running(command: list[str], env: dict[str, str], folder: Path) -> Iterator[None]:
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(command, env=env, stderr=errors)
        try:
            yield
        finally:
            process.kill()
            process.wait()
    assert (folder / "errors").read_text() == ""


def test_keys_that_node_counts_are_spread(
    deployment: tuple[Served, RedisServer], tmp_path: Path
) -> None:
    served, redis = deployment
    (tmp_path / "heat.mjs").write_text(f"{block_with('setInterval').text}\n{TRAFFIC}\n")
    env = {"REDIS_URL": redis.url}
    with running([str(NODE), str(tmp_path / "heat.mjs")], env, tmp_path):
        until(lambda: buckets(served, "conv_node") > 1, "the key that Node counts is spread")
