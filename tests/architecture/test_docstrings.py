"""What an application calls explains itself: an example in each docstring, and the errors by name.

The methods are those that docs/reference/python.md shows. A public method that is not on that page
is for Heatsink itself, and must be named here.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import FunctionType

import pytest

import heatsink
from heatsink import Heatsink, errors
from heatsink.boto import Attachment, Table, attach
from heatsink.bulk import Actions, Bulk, Context
from heatsink.bulk.schedules import Schedules
from heatsink.bulk.work.consumer import Consumer
from heatsink.client import BlockingHeatsink
from heatsink.client.deployment import DeploymentSettings
from heatsink.client.starlette import answer_errors, client, lifespan
from heatsink.reads import BlockingReads, Reads
from heatsink.spread.counters import BufferedCounters, Counters
from heatsink.spread.log import Log
from heatsink.timelines import Timelines

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
NAMESPACES: tuple[type, ...] = (
    *(Heatsink, BlockingHeatsink, DeploymentSettings, Schedules),
    *(Log, Counters, BufferedCounters, Reads, BlockingReads, Timelines, Bulk),
    *(Actions, Context, Consumer, Attachment, Table),
)
FUNCTIONS = (heatsink.connect, heatsink.connect_sync, attach, lifespan, client, answer_errors)
FOR_HEATSINK_ITSELF = {
    Heatsink: {"cluster_watch", "parts", "queue_watch"},
    DeploymentSettings: {"now", "controls", "checked", "found", "warn_of_differences"},
    Reads: {"belongs_to", "drop", "drop_all", "get_own"},
    BlockingReads: {"belongs_to", "drop", "drop_all"},
    Bulk: {"adopt", "close", "is_closed", "trace_of", "change", "tell_done", "next_action"},
    Timelines: {"adopt"},
    Actions: {"and_also", "living", "wrapped"},
    Consumer: {"lost_items", "hand_over_at", "cut_off"},
}
BLOCK = re.compile(r"::\n\n(?: {4}.*\S.*\n?){1,4}")
CALLED = r"hs\.|actions\.|worker\.|table\.|attachment\."
LINE = re.compile(rf"`(?:for \w+ in )?(?:\(?await |{CALLED})[^`]+`")


def public(kind: type) -> dict[str, FunctionType]:
    """Its own public methods and properties, by name."""
    found = {}
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and isinstance(function, FunctionType):
            found[name] = function
    return found


def on_the_page(kind: type) -> set[str]:
    """The members that the reference shows: those listed, or all."""
    page = REFERENCE.read_text()
    short = f"heatsink.{kind.__module__.split('.')[1]}.{kind.__name__}"
    for name in (f"{kind.__module__}.{kind.__name__}", short, f"heatsink.{kind.__name__}"):
        found = re.search(rf"autoclass:: {re.escape(name)}\b.*\n   :members:(.*)", page)
        if found:
            return set(re.findall(r"\w+", found[1])) or set(public(kind))
    pytest.fail(f"{kind.__name__} is not in {REFERENCE.name}")


METHODS = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in NAMESPACES
    for name in public(kind)
    if name not in FOR_HEATSINK_ITSELF.get(kind, ())
]


@pytest.mark.parametrize("kind", NAMESPACES, ids=lambda kind: kind.__name__)
def test_every_public_method_is_in_the_reference_or_for_heatsink_itself(kind: type) -> None:
    documented = on_the_page(kind) & public(kind).keys()
    assert documented | FOR_HEATSINK_ITSELF.get(kind, set()) == public(kind).keys()


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_a_public_method_has_an_example(kind: type, name: str) -> None:
    text = inspect.getdoc(public(kind)[name]) or ""
    assert text, "say in one sentence what it does"
    assert BLOCK.search(text) or LINE.search(text), "show how it is called, in a line or two"


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_public_function_has_an_example(function: FunctionType) -> None:
    assert BLOCK.search(inspect.getdoc(function) or "")


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_a_public_method_names_the_errors_that_it_raises(kind: type, name: str) -> None:
    """Those raised in its own class; the class may name them for all methods, or their base."""
    text = f"{inspect.getdoc(public(kind)[name])} {inspect.getdoc(kind)}"
    for error in set(raised_by(kind, name, set())):
        names = {base.__name__ for base in error.__mro__} - {"HeatsinkError", "Exception"}
        assert any(f"`{each}`" in text for each in names), f"it raises {error.__name__}"


def raised_by(kind: type, name: str, seen: set[str]) -> Iterator[type[Exception]]:
    """Errors of Heatsink that a method raises, or a method of its class that it calls."""
    member = vars(kind).get(name)
    function = member.fget if isinstance(member, property) else member
    if name in seen or not isinstance(function, FunctionType):
        return
    seen.add(name)
    for node in ast.walk(ast.parse(dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            error = getattr(errors, ast.unparse(node.exc.func), None)
            if isinstance(error, type):
                yield error
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield from raised_by(kind, node.attr, seen)
