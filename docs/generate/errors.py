"""The tree of errors, as it stands at the top of its module."""

from __future__ import annotations

from inspect import getdoc

from docs.generate.markdown import code, paragraphs, table
from heatsink import errors


def markdown() -> str:
    _, _, tree = (errors.__doc__ or "").partition("\n\n")
    own = [each for each in vars(errors).values() if isinstance(each, type)]
    rows = [[code(error.__name__), getdoc(error) or ""] for error in own]
    return paragraphs(f"```text\n{tree.rstrip()}\n```", table(["error", "when"], rows))
