"""What a power failure leaves: the model of a disk, and real servers held against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import real

from .disk import (
    Durable,
    File,
    MarkedServer,
    MortalServer,
    after_power_failure,
    best_observer,
    mark,
    marks,
    what_is_durable,
)

ITEMS = 200


def left(durable: Durable, **present: int) -> dict[str, File]:
    return after_power_failure(durable, {int(name[1:]): size for name, size in present.items()})


def test_bytes_are_durable_up_to_the_size_when_fsync_was_called() -> None:
    durable = what_is_durable({"log": File(1, 10)}, ["sync 1 50"])
    assert left(durable, _1=80) == {"log": File(1, 50)}


def test_what_was_there_at_the_start_is_durable() -> None:
    assert left(what_is_durable({"log": File(1, 10)}, []), _1=80) == {"log": File(1, 10)}


def test_a_new_file_is_gone_until_its_folder_is_fsynced() -> None:
    record = ["sync 2 50"]
    assert left(what_is_durable({}, record), _2=50) == {}
    durable = what_is_durable({}, [*record, "dir 9 log.2=2"])
    assert left(durable, _2=70) == {"log.2": File(2, 50)}


def test_a_file_in_a_durable_folder_that_was_never_fsynced_is_empty() -> None:
    assert left(what_is_durable({}, ["dir 9 log.2=2"]), _2=70) == {"log.2": File(2, 0)}


def test_a_rename_is_undone_until_its_folder_is_fsynced() -> None:
    before = {"manifest": File(1, 10)}
    record = ["sync 2 20", "saved 1"]
    assert left(what_is_durable(before, record), _1=10, _2=20) == before
    after = what_is_durable(before, [*record, "dir 9 manifest=2"])
    assert left(after, _1=10, _2=20) == {"manifest": File(2, 20)}


def test_an_unlink_survives_and_its_inode_may_serve_again() -> None:
    before = {"old": File(1, 10), "log": File(2, 10)}
    assert left(what_is_durable(before, ["gone 1"]), _2=10) == {"log": File(2, 10)}
    again = what_is_durable(before, ["gone 1", "dir 9 log=2 new=1"])
    assert left(again, _1=30, _2=10)["new"] == File(1, 0)


def test_a_truncated_file_does_not_grow_back() -> None:
    durable = what_is_durable({"log": File(1, 10)}, ["cut 1 4"])
    assert left(durable, _1=30) == {"log": File(1, 4)}


def test_marks_name_items_in_any_bytes() -> None:
    data = f"..{mark('r1-a', 7)}{mark('r1-a', 8)}..{mark('b', 7)}{mark('b', 7)}".encode()
    assert marks(data) == {("r1-a", 7), ("r1-a", 8), ("b", 7)}


@pytest.fixture(params=["best", "marked"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MortalServer]:
    """Without a C compiler the best observer is the marked one."""
    make = best_observer(tmp_path) if request.param == "best" else MarkedServer
    with real(make) as started:
        assert isinstance(started, MortalServer)
        yield started


def write(server: MortalServer, batch: str) -> None:
    for index in range(ITEMS):
        server.command("SET", f"{batch}-{index}", mark(batch, index))


def test_a_server_comes_back_with_what_was_durable(server: MortalServer) -> None:
    write(server, "kept")
    server.command("CONFIG", "SET", "appendfsync", "always")
    server.command("SET", "last", "1")  # fsynced before it is answered, with all before it
    server.mark()
    server.command("CONFIG", "SET", "appendfsync", "no")
    write(server, "lost")
    cut = server.fail_power()
    assert cut.items == {("lost", index) for index in range(ITEMS)}
    server.start()
    assert server.command("DBSIZE") == str(ITEMS + 1)


def test_a_rewrite_is_undone_or_whole(server: MortalServer) -> None:
    if isinstance(server, MarkedServer):
        return  # it sees no rewrites
    write(server, "kept")
    server.command("CONFIG", "SET", "appendfsync", "always")
    server.command("CONFIG", "SET", "rdb-key-save-delay", "100000")
    server.command("BGREWRITEAOF")
    write(server, "during")
    assert server.fail_power().is_rewriting
    server.start()
    assert server.command("DBSIZE") == str(2 * ITEMS)
