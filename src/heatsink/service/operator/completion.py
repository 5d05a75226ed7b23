"""`heatsink completion`: what a shell has to know to complete our commands."""

from __future__ import annotations

import click
import msgspec
from click.shell_completion import get_completion_class

from heatsink.service.configuration import json_option

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "heatsink"
VARIABLE = "_HEATSINK_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Completion of commands and flags: eval "$(heatsink completion bash)" in ~/.bashrc.

    In zsh the same in ~/.zshrc; in fish: heatsink completion fish | source.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    script = made.source_template % made.source_vars()
    if as_json:
        script = msgspec.json.encode({"shell": shell, "script": script}).decode()
    click.echo(script)
