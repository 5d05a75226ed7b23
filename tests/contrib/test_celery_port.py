"""The ported Celery application in examples/celery_port.py, on a private Redis."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest

from heatsink.bulk import Actions
from heatsink.client.blocking import BlockingHeatsink
from tests.waiting import until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "celery_port.py"
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.server("the example works on a private Redis"),
]


@pytest.fixture
def ported() -> ModuleType:
    spec = importlib.util.spec_from_file_location("celery_port", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ported_application_does_what_the_celery_application_did(
    ported: ModuleType,
    heatsink_client: BlockingHeatsink,
    heatsink_worker: Callable[[Actions], None],
) -> None:
    hs = heatsink_client
    heatsink_worker(ported.actions)
    ported.tidy_every(hs, 1)
    later = ported.remind_later(hs, "ada", timedelta(seconds=0.5))
    assert ported.get_price(hs, "mug") == {"product": "mug", "cents": 300}

    last = ported.publish_prices(hs, ["mug", "teapot"], "Berlin")
    assert hs.bulk.wait(last, timeout_s=120).done == 2
    assert set(ported.published) == {
        "mug costs 3.00 in Berlin [Berlin]",
        "teapot costs 6.00 in Berlin [Berlin]",
    }

    assert hs.bulk.wait(later, timeout_s=120).done == 1
    assert ported.reminded[0] == "ada: attempt 1"

    until(lambda: len(set(ported.tidied)) >= 2)
    assert all("batch schedule:tidy:1:20" in line for line in ported.tidied)
