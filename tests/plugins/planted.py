"""Says at the end of the tests which planted bugs are no longer found by their known seed."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.planted import RENEW, STALE

PROPERTY = "stale_seed"
Report = Generator[None, pytest.TestReport, pytest.TestReport]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Report:
    """Moves what a test noted into its report, which also comes from other processes."""
    report = yield
    if call.when == "call":
        report.user_properties += [(PROPERTY, stale) for stale in STALE]
        STALE.clear()
    return report


class Summary:
    """In the process that prints."""

    def __init__(self) -> None:
        self._stale: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            noted = [value for name, value in report.user_properties if name == PROPERTY]
            self._stale += [str(each) for each in noted]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._stale:
            terminalreporter.section("planted bugs: other seeds find them now")
            for line in sorted(self._stale):
                terminalreporter.write_line(line)
            cure = f"Each such seed costs seconds: run `{RENEW}` and commit the seeds it writes."
            terminalreporter.write_line(cure)
