"""The surface that applications rely on. A change here is a change for every user."""

from __future__ import annotations

import inspect
from types import ModuleType

import heatsink
from heatsink import errors
from heatsink.reads import Reads

SURFACE = {
    "BucketRules",
    "Call",
    "Event",
    "Heatsink",
    "Hook",
    "PartitionLimit",
    "Retries",
    "Settings",
    "Snowflake",
    "Ulid",
    "Uuid7",
    "cached",
    "connect",
    "connect_sync",
}


def test_the_public_api_is_what_all_says() -> None:
    assert set(heatsink.__all__) == SURFACE
    for name in SURFACE:
        assert getattr(heatsink, name).__name__ == name
        assert name in dir(heatsink)
    public = {
        name
        for name in dir(heatsink)
        if not name.startswith("_") and not isinstance(getattr(heatsink, name), ModuleType)
    }
    assert public == SURFACE


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(heatsink, "conect")
    assert not hasattr(heatsink.client, "conect_sync")


def test_every_error_has_one_root_and_says_when_to_catch_it() -> None:
    for name, error in inspect.getmembers(errors, inspect.isclass):
        if not issubclass(error, Exception):
            continue
        assert issubclass(error, errors.HeatsinkError), name
        assert error.__doc__, name
        assert errors.__doc__ is not None
        assert name in errors.__doc__, f"{name} is missing in the tree"


def test_the_calls_of_the_readme_are_there() -> None:
    parameters = {
        "append": ["key", "body", "id", "ttl"],
        "page": ["key", "limit", "cursor", "order", "after", "before", "fresh_for", "stale_for"],
        "get": ["key", "id"],
        "delete": ["key", "id"],
        "erase": ["key"],
    }
    from heatsink.spread.log import Log

    for name, expected in parameters.items():
        assert list(inspect.signature(getattr(Log, name)).parameters)[1:] == expected


def test_no_signature_shows_the_address_of_an_object() -> None:
    """`help(heatsink.Heatsink)` is for people: a default is a value, or None."""
    shown = {
        name: str(inspect.signature(thing))
        for name, thing in vars(heatsink).items()
        if inspect.isclass(thing) or inspect.isfunction(thing)
    }
    assert {name for name, text in shown.items() if " at 0x" in text} == set()
    assert " at 0x" not in str(inspect.signature(Reads))
