"""`./dev soak --followers 1000000`: authors of 10, 1,000, … followers, each follow written."""

from __future__ import annotations

import argparse
import asyncio
import gc
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .celebrity import Sizes, play


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("--followers", type=int, default=1_000_000, help="of the largest author")
    parser.add_argument(
        "--sample", type=int, default=1_000, help="homes to check beside the first 10,000"
    )
    options = parser.parse_args()
    largest = options.followers
    usual = Sizes()
    followers = (*(size for size in usual.followers if size < largest), largest)
    falls = tuple(min(size, largest) for size in usual.falls)
    sizes = Sizes(followers, falls=falls, sample=options.sample)
    gc.set_threshold(100_000, 50, 1_000)  # it would look through millions of rows again and again
    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), sizes, partial(print, flush=True)))


if __name__ == "__main__":
    main()
