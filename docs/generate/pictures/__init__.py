"""The pictures of docs/images/lab: from the lab's experiments, the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from docs.generate.pictures.draw import svg
from docs.generate.pictures.placement import across_changes
from heatsink.lab import fairness, hot_key, isolation, reads, scaling
from heatsink.lab.report import Chart, LabReport

FOLDER = Path(__file__).parents[2] / "images" / "lab"
EXPERIMENTS: dict[Callable[[], LabReport], dict[str, str]] = {
    hot_key.experiment: {
        "hot-key-acknowledged": "Writes acknowledged",
        "hot-key-throttled": "Throttled writes",
        "hot-key-buckets": "Buckets",
        "hot-key-pages": "Rows read for a page of 50",
    },
    fairness.experiment: {"fairness": "How long each small batch took"},
    isolation.experiment: {
        "isolation-small": "Small batches, the slowest",
        "isolation-large": "The large batch",
    },
    scaling.experiment: {"scaling-workers": "Workers"},
    reads.experiment: {"reads-loads": "Loads at the database"},
}


def charts() -> Iterator[tuple[str, Chart]]:
    """Every picture's name and what it shows."""
    yield "closed-time", across_changes()
    for experiment, wanted in EXPERIMENTS.items():
        found = {chart.title: chart for chart in experiment().charts}
        for name, title in wanted.items():
            yield name, found[title]


def draw_all(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name, chart in charts():
        (folder / f"{name}.svg").write_text(svg(chart), encoding="utf-8")
