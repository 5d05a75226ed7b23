"""What an application may use is in the reference, and says what it does."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pkgutil import resolve_name

import pytest

from .pages import DOCS

PACKAGES = ("heatsink", *(f"heatsink.{name}" for name in ("boto", "bulk", "reads", "timelines")))
PYTHON = (DOCS / "reference" / "python.md").read_text()
SETTINGS = (DOCS / "reference" / "settings.md").read_text()
CLASSES = re.findall(r"autoclass:: ([\w.]+).*\n((?:   :.*\n)*)", PYTHON)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    for name in import_module(package).__all__:
        assert re.search(rf"\bheatsink[\w.]*\.{name}\b", PYTHON + SETTINGS), name


@pytest.mark.parametrize(("name", "options"), CLASSES, ids=[name for name, _ in CLASSES])
def test_every_member_that_is_shown_says_what_it_does(name: str, options: str) -> None:
    """One that does not would be left out in silence."""
    kind = resolve_name(name)
    assert inspect.getdoc(kind)
    for member in members(kind, options):
        value = inspect.getattr_static(kind, member)
        text = value.fget if isinstance(value, property) else value
        assert inspect.getdoc(text), f"{name}.{member} needs a docstring"


def members(kind: type, options: str) -> list[str]:
    named = re.search(r":members:(.*)\n", options)
    if named is None:
        return []
    if named[1].strip():
        return [each.strip() for each in named[1].split(",")]
    found = inspect.getmembers(kind, lambda v: inspect.isfunction(v) or isinstance(v, property))
    return [member for member, _ in found if not member.startswith("_")]
