"""Cache keys from calls: the template `product:{id}` and `product(42)` give `product:42`.

Different arguments give different keys. A whole number appears in the key as it is. A text does
too, unless it could be taken for another value: the text `42` gives `product:'42'`. A value of any
other type appears with the name of its type: `product:UUID(…)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import BoundArguments, Parameter, iscoroutinefunction, signature
from operator import attrgetter
from re import DOTALL
from re import compile as pattern
from string import Formatter
from typing import Any

from heatsink.errors import InvalidKey, InvalidSetting
from heatsink.primitives.checks import shown
from heatsink.primitives.words import with_article

Key = str | Callable[..., str] | None
KeyOf = Callable[..., str]
Bind = Callable[..., BoundArguments]
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
AMBIGUOUS = pattern(r"-?\d+|'.*|\w+\(.*\)", DOTALL)  # texts that could be another value's
ENDS = frozenset("0123456789')")  # the last character of such a text


def check_template(key: object) -> None:
    """Raise if `@reads.cached` was written without a key: then `key` is the function itself."""
    if iscoroutinefunction(key):
        raise InvalidSetting(
            'cached() needs a key before the function: write @hs.reads.cached("product:{id}")',
            field="key",
        )


def key_maker(key: object, function: Callable[..., Any]) -> KeyOf:
    """Return a function that makes a cache key from the arguments of a call.

    `key` is a template, a function of the same parameters, or None. Raises `InvalidSetting` if the
    template is wrong.
    """
    if not callable(function):
        raise InvalidSetting(
            'cached() needs a key before the function: write @hs.reads.cached("product:{id}")',
            field="key",
        )
    if callable(key):
        return _key_by(key)
    name = getattr(function, "__qualname__", shown(function))
    if key is None:
        key = _default_template(function)
    literals, fields = _parsed(key)
    has_parameters = bool(signature(function).parameters)
    if not fields and has_parameters:
        raise InvalidSetting(f"key must name a parameter of {name}, as in 'product:{{id}}'")
    return _maker(literals, fields, function, name)


def tags_maker(
    tags: Sequence[str], function: Callable[..., Any]
) -> Callable[..., list[str]] | None:
    """Return a function that makes the tags of a call; None if there are no tags."""
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        wrong = f'tags must be a list like ["shop:{{shop}}"], not {shown(tags)}'
        raise InvalidSetting(wrong, field="tags")
    if not tags:
        return None
    name = getattr(function, "__qualname__", shown(function))
    makers = [_maker(*_parsed(tag), function, name) for tag in tags]

    def tags_of(*arguments: Any, **named: Any) -> list[str]:
        return [make(*arguments, **named) for make in makers]

    return tags_of


def _key_by(key: Callable[..., Any]) -> KeyOf:
    def key_of(*arguments: Any, **named: Any) -> str:
        made = key(*arguments, **named)
        if not isinstance(made, str):
            raise InvalidKey(f"the key function must return a text, not {shown(made)}")
        return made

    return key_of


def _default_template(function: Callable[..., Any]) -> str:
    """Return a template with the name of the function and all its parameters."""
    parameters = signature(function).parameters.values()
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if any(each.kind in VARIADIC for each in parameters) or not name:
        raise InvalidSetting(
            f"{name or shown(function)} takes any number of arguments, so no key can be made of "
            "them: pass a key template, as in cached('product:{id}')",
            field="key",
        )
    fields = ", ".join(f"{{{each.name}}}" for each in parameters)
    return f"{module}.{name}({fields})".replace("<", "").replace(">", "")


def _maker(
    literals: list[str], fields: list[str], function: Callable[..., Any], name: str
) -> KeyOf:
    bind, parameters = signature(function).bind, signature(function).parameters
    places = {parameter: place for place, parameter in enumerate(parameters)}
    for field in fields:
        first = field.partition(".")[0]
        if first not in places or parameters[first].kind in VARIADIC:
            usable = (each.name for each in parameters.values() if each.kind not in VARIADIC)
            raise InvalidSetting(
                f"the key template uses {{{first}}}, but {name}() has no such parameter; "
                f"it has {', '.join(usable) or 'none'}"
            )
    if not fields:
        return _key_of_none(literals[0], bind)
    if len(fields) == 1 and "." not in fields[0]:
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
            is_path = all(part.isidentifier() for part in field.split("."))
            if not is_path or spec or conversion:
                raise InvalidSetting(
                    "key must name only parameters or their attributes, such as {id} or {user.id}, "
                    f"not {{{field}…}}"
                )
            fields.append(field)
            literals.append("")
    except ValueError as error:
        raise InvalidSetting(f"key {shown(template)} is not a valid template: {error}") from None
    if len(fields) > 1 and not all(literals[1:-1]):
        raise InvalidSetting("key must have text between two parameters, as in '{shop}:{id}'")
    return literals, fields


def _key_of_none(text: str, bind: Bind) -> KeyOf:
    def key_of(*arguments: Any, **named: Any) -> str:
        bind(*arguments, **named)  # raises for arguments that the function does not take
        return text

    return key_of


def _key_of_one(literals: list[str], place: int, field: str, bind: Bind) -> KeyOf:
    """Return the key function for a template with one field: `product:{id}`.

    `literals` are the texts before and after the field, and `place` is the position of its
    parameter. This common case must be fast.
    """
    before, after = literals

    def key_of(*arguments: Any, **named: Any) -> str:
        if len(arguments) > place:
            value = arguments[place]
        else:
            value = named[field] if field in named else _arguments(bind, arguments, named)[field]
        return f"{before}{value if type(value) is int else _text(value)}{after}"

    return key_of


def _key_of_many(literals: list[str], fields: list[str], bind: Bind) -> KeyOf:
    """Return the key function for a template with several fields, or with an attribute.

    Separators inside values are escaped, so that different values give different keys.
    """
    table = str.maketrans({char: f"%{ord(char):02X}" for char in {"%", *"".join(literals[1:-1])}})
    first, *rest = literals
    getters = [_getter(field) for field in fields]

    def key_of(*arguments: Any, **named: Any) -> str:
        values = _arguments(bind, arguments, named)
        parts = (_text(get(values)).translate(table) for get in getters)
        return first + "".join(part + text for part, text in zip(parts, rest, strict=True))

    return key_of


def _getter(field: str) -> Callable[[dict[str, Any]], Any]:
    """Return a function that finds a field like `user.id` in the arguments of a call."""
    name, dot, path = field.partition(".")
    read = attrgetter(path) if dot else None

    def get(values: dict[str, Any]) -> Any:
        try:
            return values[name] if read is None else read(values[name])
        except AttributeError as error:
            raise InvalidKey(f"the key template uses {{{field}}}: {error}") from None

    return get


def _arguments(bind: Bind, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    bound = bind(*arguments, **named)
    bound.apply_defaults()
    return bound.arguments


def _text(value: Any) -> str:
    """Return the text of a value in a key; different values have different texts."""
    kind: Any = type(value)
    if kind is str:
        is_plain = value[-1:] not in ENDS or not AMBIGUOUS.fullmatch(value)
        return value if is_plain else f"'{value}'"
    if kind is int:
        return str(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        noun = with_article(kind.__name__)
        raise InvalidKey(f"{noun} has neither __str__ nor __repr__: put its id into the key")
    return f"{kind.__name__}({value})"
