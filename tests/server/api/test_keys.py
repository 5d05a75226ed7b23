"""No key is taken for another, whatever it is made of. `./dev soak --keys 1000000` tries more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from tests.processes import serving

from .keys import check_codec, is_right, random_key, write_and_read


def test_random_keys_survive_the_codec_and_the_path() -> None:
    rng = Random(6)
    keys = [random_key(rng) for _ in range(10_000)]
    assert 0.5 < sum(map(is_right, keys)) / len(keys) < 0.99, "both kinds are tried"
    for key in keys:
        check_codec(key, rng.choice((None, 0, 63)))


def test_random_keys_have_conversations_of_their_own(tmp_path: Path) -> None:
    rng = Random(7)
    keys = list({random_key(rng) for _ in range(1_500)})
    with serving(tmp_path, "--store", "memory://") as served:
        statuses = asyncio.run(write_and_read(served.port, keys))
    assert set(statuses) == {201, 400}
    assert statuses[201] == sum(map(is_right, keys))
