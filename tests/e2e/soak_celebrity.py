"""`./dev soak --followers 1000000`: authors of 10, 1,000, … followers, each follow written."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .celebrity import Sizes, play


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("--followers", type=int, default=1_000_000, help="of the largest author")
    largest = parser.parse_args().followers
    usual = Sizes()
    followers = (*(size for size in usual.followers if size < largest), largest)
    falls = tuple(min(size, largest) for size in usual.falls)
    sizes = Sizes(followers, falls=falls)
    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), sizes, partial(print, flush=True)))


if __name__ == "__main__":
    main()
