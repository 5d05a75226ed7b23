"""What happens in CI to a run in which a few tests failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from .unsteady import REPEATED_MAX, to_repeat

ROOT = Path(__file__).parents[2]
TESTS = """
from pathlib import Path

def test_steady():
    pass

def test_loses_a_race():
    again = Path("again")
    first, _ = not again.exists(), again.touch()
    assert not first, "a race"

def test_broken():
    assert {passes}, "a fault"
"""


def failure(test: str, when: Literal["setup", "call", "teardown"] = "call") -> pytest.TestReport:
    return pytest.TestReport(test, ("", 0, ""), {}, "failed", "it failed", when)


def run(folder: Path, passes: bool, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider\n")
    (folder / "test_some.py").write_text(TESTS.format(passes=passes))
    plugins = ["-p", "xdist", "-p", "tests.plugins.unsteady"]
    quiet = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *flags],
        cwd=folder,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_test_that_passes_alone_is_named_and_the_run_passes(tmp_path: Path) -> None:
    done = run(tmp_path, True, "-n", "1", "--repeat-failures")
    assert done.returncode == 0, done.stdout
    assert re.match(r"2 passed, 1 unsteady in ", done.stdout.splitlines()[-1])
    said = done.stdout.partition("UNSTEADY")[2]
    assert "test_some.py::test_loses_a_race" in said
    assert "AssertionError: a race" in said
    assert "test_steady" not in said


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, False, "--repeat-failures")
    assert done.returncode == 1
    assert re.match(r"2 failed, 1 passed in ", done.stdout.splitlines()[-1])
    assert "UNSTEADY" not in done.stdout


def test_nothing_is_repeated_unless_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, True)
    assert done.returncode == 1
    assert re.match(r"1 failed, 2 passed in ", done.stdout.splitlines()[-1])


def test_many_failures_are_not_repeated() -> None:
    some = [failure(f"test_some.py::test_{number}") for number in range(REPEATED_MAX)]
    assert to_repeat(some) == [each.nodeid for each in some]
    assert to_repeat([*some, failure("test_some.py::test_one_more")]) == []


def test_a_test_that_failed_in_two_phases_counts_once() -> None:
    twice = [failure("test_some.py::test_it"), failure("test_some.py::test_it", "teardown")]
    assert to_repeat(twice) == ["test_some.py::test_it"]


def test_a_file_that_cannot_be_imported_is_not_repeated() -> None:
    broken = pytest.CollectReport("test_some.py", "failed", "no such module", [])
    assert to_repeat([failure("test_some.py::test_it"), broken]) == []
