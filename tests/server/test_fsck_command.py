from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import heatsink
from heatsink.cli import main
from heatsink.client.urls import open_stores
from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.ids import Uuid7
from heatsink.server.commands.fsck import _check_reset
from heatsink.spread.store import Row


def fsck(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fsck", *arguments])


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    async with heatsink.connect(f"sqlite:///{tmp_path}/x.db") as hs:
        for n in range(5):
            await hs.log.append("conv", b"%d" % n)
    return tmp_path / "x.db"


def test_a_healthy_store_passes(file: Path) -> None:
    result = fsck(f"sqlite:///{file}")
    assert result.exit_code == 0
    assert "5 rows of 1 key checked" in result.output
    assert json.loads(fsck(f"sqlite:///{file}", "--json").output)["findings"]["rows"] == 5


@pytest.mark.parametrize(
    ("ahead_ms", "said"), [(-9_900, "9.9 s ago"), (400, "0.4 s from now"), (0, "0.0 s from now")]
)
async def test_where_there_is_nothing_to_reset_it_says_when_the_closed_time_is(
    ahead_ms: int, said: str, file: Path
) -> None:
    stores = open_stores(f"sqlite:///{file}", SystemClock())
    try:
        closed_ms = (await stores.registry.meta()).meta.closed_ms
        with pytest.raises(InvalidSetting, match=f"^the closed time is {said}: no reset is needed"):
            await _check_reset(stores, closed_ms - ahead_ms)
    finally:
        await stores.close()


async def lose_an_epoch(file: Path) -> None:
    async with heatsink.connect(f"sqlite:///{file}") as hs:
        raw = Uuid7().from_parts(1_000_000, 0, 0)
        await hs.parts.stores.log.put("conv#0", Row(raw, b"old", 999_999, 1_000))


async def test_a_lost_epoch_is_named_and_mended(file: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    await lose_an_epoch(file)
    with ThreadPoolExecutor(1) as elsewhere:  # the command runs a loop of its own
        broken = elsewhere.submit(fsck, f"sqlite:///{file}").result()
        assert broken.exit_code == 1
        assert "1 row placed by epochs the registry lacks" in broken.output
        assert "--rebuild" in broken.output
        mended = elsewhere.submit(fsck, f"sqlite:///{file}", "--rebuild").result()
        assert "epochs of 1 key rebuilt" in mended.output


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite:///nowhere.db", "no database nowhere.db"),
        ("memory://", "exists only inside its process"),
        ("ftp://x", "names no store"),
    ],
)
def test_a_wrong_url_is_one_clear_line(url: str, complaint: str) -> None:
    result = fsck(url)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.startswith("heatsink: ")
    assert len(result.stderr.splitlines()) == 1
    assert not Path("nowhere.db").exists()
