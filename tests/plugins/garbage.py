"""Keeps the garbage collector away from what lives as long as the tests: modules and test items.

They are a million objects, and every full collection visits each of them. So the collector rests
while pytest imports and collects, and then counts all that it finds as permanent.
"""

from __future__ import annotations

import gc

import pytest


def pytest_configure() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.enable()
