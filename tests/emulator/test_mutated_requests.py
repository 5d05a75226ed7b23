"""A short run of `./dev soak --requests`: no mutated request breaks the emulator."""

from __future__ import annotations

import pytest

from .soak_requests import run

pytestmark = pytest.mark.server("a share of the requests goes over a socket")


def test_mutated_requests_are_answered() -> None:
    assert run(3_000, seed=1) == []
