"""Shell blocks run, or are marked as not run; those are Bash all the same, and their commands ours.

The README has a test of its own, which runs it where only the wheel is (tests/packaging).
`<!-- not run: why -->` above a block is for what needs a cloud, a cluster or a quarter of an hour.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from heatsink.cli import main
from heatsink.server.door.tables import read_tables
from heatsink.stores.embedded import free_port

from .pages import DOCS, README, TUTORIAL, Block, blocks, name_of, with_blocks
from .pages import PAGES as EVERY_PAGE
from .shell import PORTS, run

PAGES = with_blocks("sh")
RUN = [
    page
    for page in PAGES
    if page not in (TUTORIAL, README)
    and any(block.language == "sh" and block.is_run for block in blocks(page))
]


def shell_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "sh"]


def command_lines(block: Block) -> list[list[str]]:
    """Those of `heatsink`, without comments and what Bash does with them."""
    found = re.findall(r"^heatsink [^#\n]*", block.text.replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(line.partition(" > ")[0].rstrip("& "))[1:] for line in found]


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the first words name, as far as they do, and the other words."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z-]+", words[0]):
        name, *words = words
        command = command.commands[name]
    return command, words


def parse(arguments: list[str]) -> None:
    """Raises what a wrong flag or name raises, and runs nothing."""
    context = click.Context(main, info_name="heatsink", auto_envvar_prefix="HEATSINK")
    command: click.Command = main
    while isinstance(command, click.Group):
        name, *arguments = arguments
        if name.startswith("-"):
            return
        command = command.commands[name]
        context = click.Context(command, parent=context, info_name=name)
    assert context.info_name is not None
    command.make_context(context.info_name, arguments, parent=context.parent)


DEAR = {DOCS / "how-to" / "plan.md", DOCS / "how-to" / "server.md"}
FULL = pytest.mark.full("its commands compute, or start servers, for seconds")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=FULL) if page in DEAR else page for page in RUN], ids=name_of
)
def test_the_shell_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    run(shell_blocks(page), tmp_path, {port: free_port() for port in PORTS})


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_shell_blocks_are_called_sh_or_they_would_not_be_checked(page: Path) -> None:
    assert not {block.language for block in blocks(page)} & {"bash", "shell", "console"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_not_run_is_bash_at_least(page: Path) -> None:
    for block in shell_blocks(page):
        check = ["bash", "-n", "-c", block.text]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_command_lines_are_ones_the_program_takes(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.csv").write_text("conversation\n1\n")
    (tmp_path / "trail.json.gz").touch()
    for block in shell_blocks(page):
        for arguments in command_lines(block):
            parse(arguments)


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_commands_and_flags_in_the_text_are_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for line in re.findall(r"`heatsink ([a-z][^`]*)`", text):
        command, words = find_command(line.split())
        known = {flag for parameter in command.params for flag in parameter.opts}
        used = {word.partition("=")[0] for word in words if re.match(r"--\w", word)}
        assert used <= known | {"--help"}, line


@pytest.mark.parametrize("page", with_blocks("toml"), ids=name_of)
def test_files_of_settings_and_of_tables_are_ones_the_commands_take(
    page: Path, tmp_path: Path
) -> None:
    for block in blocks(page):
        if block.language == "toml":
            settings = tomllib.loads(block.text)
            if "table" in settings:  # declares the tables of `heatsink door`
                (tmp_path / "tables.toml").write_text(block.text)
                assert read_tables(tmp_path / "tables.toml")
                continue
            for name, values in settings.items():
                known = {parameter.name for parameter in main.commands[name].params}
                assert {each.replace("-", "_") for each in values} <= known


def test_a_wrong_flag_would_be_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parse(["table", "create", "dynamodb://x", "--wirte-units", "5"])
    with pytest.raises(KeyError):
        parse(["bulk", "sumbit"])
