from __future__ import annotations

from random import Random

import pytest

from heatsink.primitives.ids import Minter, Ulid, Uuid7
from heatsink.primitives.keys import seeded_hash
from tests.chi_square import assert_even

NOW_MS = 1_800_000_000_000


def uuids() -> list[bytes]:
    minter = Minter(Uuid7(), Random(1))
    return [minter.mint(NOW_MS + n // 4, NOW_MS * 2)[0] for n in range(20_000)]


def ulids() -> list[bytes]:
    minter = Minter(Ulid(), Random(1))
    return [minter.mint(NOW_MS + n // 4, NOW_MS * 2)[0] for n in range(20_000)]


def snowflakes() -> list[bytes]:
    """Ten machines, four ids in each millisecond, as a hot conversation makes them."""
    return [
        (((NOW_MS // 2 + n // 4) << 22) | ((n % 10) << 12) | (n % 4 // 2)).to_bytes(8, "big")
        for n in range(20_000)
    ]


@pytest.mark.parametrize("ids", [uuids(), ulids(), snowflakes()], ids=["uuid7", "ulid", "snow"])
@pytest.mark.parametrize("seed", [b"a" * 16, b"b" * 16])
def test_ids_of_every_kind_spread_evenly_over_2_to_64_buckets(
    ids: list[bytes], seed: bytes
) -> None:
    hashes = [seeded_hash(seed)(raw) for raw in dict.fromkeys(ids)]
    for count in range(2, 65):
        assert_even((number % count for number in hashes), count)


def test_a_raw_snowflake_modulo_4_would_not_spread() -> None:
    with pytest.raises(AssertionError):
        assert_even((int.from_bytes(raw, "big") % 4 for raw in snowflakes()), 4)


def test_the_hash_is_the_same_for_ever() -> None:
    """Rows are found by it: these values must never change."""
    hash_64 = seeded_hash(bytes(range(16)))
    assert hash_64(b"") == 0x3BC453B79112D82D
    assert [hash_64(bytes([n])) % 64 for n in range(8)] == [56, 38, 55, 45, 55, 42, 35, 26]
