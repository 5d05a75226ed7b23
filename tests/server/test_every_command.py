"""What holds for every command there is: machines can read it, and shells can complete it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from heatsink.cli import main

PROMISED = (
    *("serve", "config", "top", "hot", "explain", "pin", "decisions", "bulk", "lab", "dynamo"),
    *("fsck", "bench", "demo", "doctor", "completion", "worker", "coordinator"),
)


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(main))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_every_promised_command_is_there() -> None:
    assert set(PROMISED) <= set(main.commands)


@pytest.mark.parametrize("name", ALL)
def test_a_command_speaks_json_and_has_help(name: str) -> None:
    flags = {flag for each in ALL[name].params for flag in (*each.opts, *each.secondary_opts)}
    assert flags & {"--json", "--log-json"}
    assert run(*name.split(), "--help").exit_code == 0


@pytest.mark.parametrize("name", ALL)
def test_nonsense_is_refused_in_a_few_lines(name: str) -> None:
    result = run(*name.split(), "--no-such-flag")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert len(result.output.splitlines()) < 8


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_what_the_shell_takes(shell: str) -> None:
    script = run("completion", shell).stdout
    assert "_HEATSINK_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_a_shell_is_told_commands_and_flags() -> None:
    def told(words: str) -> str:
        environment = {
            "_HEATSINK_COMPLETE": "bash_complete",
            "COMP_WORDS": f"heatsink {words}",
            "COMP_CWORD": str(len(words.split())),
        }
        return CliRunner().invoke(main, prog_name="heatsink", env=environment).output

    assert "plain,bench" in told("ben")
    assert "plain,--at-once" in told("bench --at")


def test_bench_measures_a_new_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("bench", "--seconds", "1", "--at-once", "2", "--json")
    assert result.exit_code == 0, result.stderr
    lines = json.loads(result.stdout)
    assert [line["what"] for line in lines] == ["append", "page of 50", "add to a counter"]
    assert all(line["per_s"] > 0 and line["bare_per_s"] > 0 for line in lines)
    assert list(tmp_path.iterdir()) == []
    table = run("bench", "memory://", "--seconds", "1").stdout
    assert "bare store" in table
    assert "not the ratio of the medians shown" in " ".join(table.split())


def test_bench_erases_what_it_wrote(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    assert run("bench", url, "--seconds", "1").exit_code == 0
    found = json.loads(run("fsck", url, "--json").stdout)
    assert (found["findings"]["rows"], found["findings"]["shares"]) == (0, 0)
