from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import heatsink
from heatsink.errors import Closed, InvalidKey
from tests.spread.test_log import losing_the_first_answer


def test_the_whole_surface_without_asyncio(url: str) -> None:
    with heatsink.connect_sync(url) as hs:
        receipt = hs.log.append("conv", b"hey")
        hs.log.append("conv", b"hey", id=receipt.id)
        page = hs.log.page("conv", limit=50)
        assert [entry.body for entry in page.entries] == [b"hey"]
        assert hs.log.get("conv", receipt.id).body == b"hey"
        hs.counters.add("views", 3)
        assert hs.counters.value("views") == 3
        hs.pin("conv", buckets=4, reason="launch")
        assert "conv" in str(hs.explain("conv"))
        hs.unpin("conv")
        assert hs.log.delete("conv", receipt.id) is True
        assert hs.log.erase("conv") == 1
        with pytest.raises(InvalidKey):
            hs.log.append("", b"")


def test_an_append_without_an_id_is_new_also_after_a_lost_answer() -> None:
    with losing_the_first_answer(), heatsink.connect_sync("memory://") as hs:
        assert all(hs.log.append("conv", b"hey").is_new for _ in range(5))


def test_threads_may_share_it(tmp_path: Path) -> None:
    with heatsink.connect_sync(f"sqlite:///{tmp_path}/x.db") as hs, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: hs.log.append("conv", b"%d" % n), range(200)))
        assert len(hs.log.page("conv", limit=1_000).entries) == 200


def test_outside_its_block_it_is_closed(url: str) -> None:
    client = heatsink.connect_sync(url)
    with pytest.raises(Closed):
        client.log.append("k", b"")
    with client as hs:
        log = hs.log
        log.append("k", b"")
    with pytest.raises(Closed):
        client.log.append("k", b"")
    with pytest.raises(Closed):
        log.append("k", b"")
    client.close()


def test_a_closed_client_names_the_block_that_it_is_used_in(url: str) -> None:
    with heatsink.connect_sync(url) as hs:
        log = hs.log
    uses = (
        lambda: hs.log,
        lambda: hs.counters,
        lambda: hs.bulk,
        lambda: hs.reads,
        lambda: hs.explain("k"),
        lambda: log.append("k", b""),
    )
    for use in uses:
        with pytest.raises(Closed, match=r"inside `with heatsink\.connect_sync\(…\)`"):
            use()


def test_what_fails_to_open_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("no database at all " * 200)
    with pytest.raises(heatsink.errors.Unavailable):
        heatsink.connect_sync(f"sqlite:///{tmp_path}/x.db").__enter__()


def test_it_offers_what_the_asynchronous_client_offers() -> None:
    offered = set(dir(heatsink.connect_sync("memory://")))
    assert {name for name in dir(heatsink.Heatsink) if not name.startswith("_")} <= offered


def test_threads_that_wait_when_another_closes_are_told() -> None:
    limit = heatsink.PartitionLimit(writes_s=1)
    client = heatsink.connect_sync("memory://", limit=limit, coordinate=False)
    client.__enter__()

    def append(n: int) -> str:
        try:
            client.log.append("k", b"%d" % n)
        except heatsink.errors.HeatsinkError as error:
            return str(error)
        return "appended"

    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(append, n) for n in range(6)]
        while not any(future.done() for future in waiting):
            pass
        client.close()
        outcomes = {future.result(timeout=10) for future in waiting}
    told = {str(heatsink.errors.Closed.meanwhile("the client"))}
    late = {outcome for outcome in outcomes if "this client is closed" in outcome}
    assert outcomes <= {"appended", *told, *late}  # late: one that came only after the end
    assert len(outcomes) >= 2


def test_buffered_counters_without_asyncio() -> None:
    with heatsink.connect_sync("memory://") as hs:
        with hs.counters.buffered(flush_s=0.01) as counts:
            counts.add("views", 5)
            counts.add("views", 0)
        assert hs.counters.value("views") == 5


def test_it_is_opened_once() -> None:
    client = heatsink.connect_sync("memory://")
    with client, pytest.raises(Closed, match="once"):
        client.__enter__()
    with pytest.raises(Closed, match="once"):
        client.__enter__()
