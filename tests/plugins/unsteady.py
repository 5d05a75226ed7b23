"""`--repeat-failures`: in CI, a few tests that failed run once more, alone, before the run fails.

CI runs thousands of tests on a machine that may stall for seconds. One test that loses a race there
says little about the commit that it stops, and everybody behind that commit waits. So if at most
`REPEATED_MAX` tests failed, they run again in a process of their own, with nothing beside them. If
all of them pass then, the run passes. The tests are not forgotten: a section at the end names each
of them with its first error, and the last line counts them as unsteady instead of passed.

A test that fails twice fails the run, and so do more failures than that: these are no races.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

REPEATED_MAX = 5
UNSTEADY = "unsteady"
FAILED = ("failed", "error")


def pytest_addoption(parser: pytest.Parser) -> None:
    words = f"run up to {REPEATED_MAX} tests that failed once more, alone (CI)"
    parser.addoption("--repeat-failures", action="store_true", help=words)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--repeat-failures") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Repeat())


def to_repeat(failures: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """The tests that may run again; none if there are too many, or if a file was not imported."""
    tests = list(dict.fromkeys(each.nodeid for each in failures))
    only_tests = all(isinstance(each, pytest.TestReport) for each in failures)
    return tests if only_tests and len(tests) <= REPEATED_MAX else []


@dataclass
class Repeat:
    """In the process that prints: repeats what failed, before that process sums up the run."""

    unsteady: list[pytest.TestReport] = field(default_factory=list)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, pytest.TerminalReporter)
        failures = [report for name in FAILED for report in terminal.stats.get(name, [])]
        if not (tests := to_repeat(failures)):
            return
        terminal.section("running what failed once more, alone")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *tests],
            cwd=session.config.rootpath,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        terminal.write_line(done.stdout)
        if done.returncode == pytest.ExitCode.OK:
            self._forgive(session, terminal, failures)

    def _forgive(
        self,
        session: pytest.Session,
        terminal: pytest.TerminalReporter,
        failures: list[pytest.TestReport],
    ) -> None:
        self.unsteady = failures
        for name in FAILED:
            terminal.stats.pop(name, None)
        terminal.stats[UNSTEADY] = failures
        session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.unsteady:
            return
        terminalreporter.section("UNSTEADY: failed at first, passed alone", sep="!", red=True)
        for report in self.unsteady:
            terminalreporter.section(f"{report.nodeid} ({report.when})", sep="-")
            terminalreporter.write_line(report.longreprtext)
        terminalreporter.write_line("\nFind out what these tests wait for, and mend them:")
        for name in dict.fromkeys(report.nodeid for report in self.unsteady):
            terminalreporter.write_line(name)
