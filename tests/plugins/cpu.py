"""`--cpu LINES`: prints the CPU seconds of every test file and test, with the processes they start.

The time of a process counts for the test that runs while it is spent, also if an earlier test
started that process. So a server that many tests share is charged to the tests that use it. The
time of processes whose parent was killed is not known and missing.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

PROPERTY = "cpu_s"
Report = Generator[None, pytest.TestReport, pytest.TestReport]


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "print the CPU seconds of this many files, functions and tests"
    parser.addoption("--cpu", type=int, metavar="LINES", help=words)


def pytest_configure(config: pytest.Config) -> None:
    lines = config.getoption("--cpu")
    if lines is None:
        return
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(lines))


def spent_s(process: int) -> float:
    """User and system time of a process, of the children it waited for, and of those it has."""
    cpu_s, children = 0.0, set[str]()
    with suppress(OSError):  # it, or one of its threads, has just ended
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        cpu_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                children.update((task / "children").read_text().split())
    return cpu_s + sum(spent_s(int(child)) for child in children)


class Meter:
    """In each process that runs tests: puts what was spent since the last test into the report."""

    def __init__(self) -> None:
        self._before_s = 0.0

    def pytest_collection_finish(self) -> None:
        self._before_s = spent_s(os.getpid())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Report:
        report = yield
        if call.when == "teardown":
            now_s = spent_s(os.getpid())
            report.user_properties.append((PROPERTY, max(0.0, now_s - self._before_s)))
            self._before_s = now_s
        return report


class Table:
    """In the process that prints."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._tests: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, cpu_s in report.user_properties:
            if name == PROPERTY and isinstance(cpu_s, float):
                self._tests[report.nodeid] = cpu_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files, functions = defaultdict[str, float](float), defaultdict[str, float](float)
        for test, cpu_s in self._tests.items():
            files[test.partition("::")[0]] += cpu_s
            functions[test.partition("[")[0]] += cpu_s
        for title, table in (("file", files), ("function", functions), ("test", self._tests)):
            terminalreporter.section(f"CPU seconds by {title}")
            for name in sorted(table, key=table.__getitem__, reverse=True)[: self._lines]:
                terminalreporter.write_line(f"{table[name]:8.2f}  {name}")
        terminalreporter.write_line(f"{sum(self._tests.values()):8.2f}  without collection")
