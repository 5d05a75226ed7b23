"""Cache keys from calls: the template `product:{id}` and `product(42)` give `product:42`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import BoundArguments, Parameter, signature
from string import Formatter
from typing import Any

from heatsink.errors import InvalidKey, InvalidSetting
from heatsink.primitives.checks import shown

KeyOf = Callable[..., str]
Bind = Callable[..., BoundArguments]
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def check_template(key: object) -> None:
    """Raise if `@reads.cached` was written without a key: then `key` is the function itself."""
    if callable(key):
        raise InvalidSetting(
            'cached() needs a key before the function: write @hs.reads.cached("product:{id}")',
            field="key",
        )


def key_maker(template: object, function: Callable[..., Any]) -> KeyOf:
    """Return a function that makes a cache key from the arguments of a call.

    Raises `InvalidSetting` if the template is wrong.
    """
    name = getattr(function, "__qualname__", shown(function))
    literals, fields = _parsed(template)
    bind, parameters = signature(function).bind, signature(function).parameters
    places = {parameter: place for place, parameter in enumerate(parameters)}
    for field in fields:
        if field not in places or parameters[field].kind in VARIADIC:
            usable = (each.name for each in parameters.values() if each.kind not in VARIADIC)
            raise InvalidSetting(
                f"the key template uses {{{field}}}, but {name}() has no such parameter; "
                f"it has {', '.join(usable) or 'none'}"
            )
    if not fields:
        raise InvalidSetting(f"key must name a parameter of {name}, as in 'product:{{id}}'")
    if len(fields) == 1:
        return _key_of_one(literals, places[fields[0]], fields[0], bind)
    return _key_of_many(literals, fields, bind)


def _parsed(template: object) -> tuple[list[str], list[str]]:
    """Split a template into the texts around its fields, and the names of the fields.

    There is one more text than there are fields.
    """
    if not isinstance(template, str):
        raise InvalidSetting(f"key must be a str like 'product:{{id}}', not {shown(template)}")
    literals, fields = [""], list[str]()
    try:
        for text, field, spec, conversion in Formatter().parse(template):
            literals[-1] += text
            if field is None:
                continue
            if not field.isidentifier() or spec or conversion:
                raise InvalidSetting(f"key must name parameters only, as {{id}}, not {{{field}…}}")
            fields.append(field)
            literals.append("")
    except ValueError as error:
        raise InvalidSetting(f"key {shown(template)} is not a valid template: {error}") from None
    if len(fields) > 1 and not all(literals[1:-1]):
        raise InvalidSetting("key must have text between two parameters, as in '{shop}:{id}'")
    return literals, fields


def _key_of_one(literals: list[str], place: int, field: str, bind: Bind) -> KeyOf:
    """Return the key function for a template with one field. This common case must be fast."""
    before, after = literals

    def key_of(*arguments: Any, **named: Any) -> str:
        if len(arguments) > place:
            value = arguments[place]
        else:
            value = named[field] if field in named else _arguments(bind, arguments, named)[field]
        kind = type(value)
        return f"{before}{value if kind is int or kind is str else _text(value)}{after}"

    return key_of


def _key_of_many(literals: list[str], fields: list[str], bind: Bind) -> KeyOf:
    """Return the key function for a template with several fields.

    Separators inside values are escaped, so that different values give different keys.
    """
    table = str.maketrans({char: f"%{ord(char):02X}" for char in {"%", *"".join(literals[1:-1])}})
    first, *rest = literals

    def key_of(*arguments: Any, **named: Any) -> str:
        values = _arguments(bind, arguments, named)
        parts = (_text(values[field]).translate(table) for field in fields)
        return first + "".join(part + text for part, text in zip(parts, rest, strict=True))

    return key_of


def _arguments(bind: Bind, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    bound = bind(*arguments, **named)
    bound.apply_defaults()
    return bound.arguments


def _text(value: Any) -> str:
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise InvalidKey(f"a {kind.__name__} has no __str__ or __repr__: put its id into the key")
    return str(value)
