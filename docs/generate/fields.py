"""Records and settings: their fields, and what is said below each in the source."""

from __future__ import annotations

import dataclasses
import inspect
from pkgutil import resolve_name
from typing import Any

import msgspec

from docs.generate.markdown import code, paragraphs, table
from heatsink.client.deployment import field_texts

WRITTEN_OUT = (bool, int, float, str, tuple, list, dict, type(None))


def settings(name: str) -> str:
    """What one may give, with what holds if one does not."""
    kind, texts = resolve_name(name), field_texts(resolve_name(name))
    rows = [
        [code(field), code(default), texts.get(field, "")]
        for field, default in defaults(kind).items()
    ]
    return paragraphs(inspect.getdoc(kind) or "", table(["field", "default", ""], rows))


def record(name: str) -> str:
    """What one gets: names and types."""
    kind, texts = resolve_name(name), field_texts(resolve_name(name))
    rows = [
        [code(field), code(annotation), texts.get(field, "")]
        for field, annotation in kind.__annotations__.items()
    ]
    return table(["field", "type", ""], rows)


def defaults(kind: Any) -> dict[str, str]:
    """Of the fields that may be left out."""
    if dataclasses.is_dataclass(kind):
        plain = {field.name: field.default for field in dataclasses.fields(kind)}
        return {name: repr(x) for name, x in plain.items() if x is not dataclasses.MISSING}
    return {field.name: _shown(field) for field in msgspec.structs.fields(kind)}


def _shown(field: msgspec.structs.FieldInfo) -> str:
    factory: Any = field.default_factory
    value = field.default if factory is msgspec.NODEFAULT else factory()
    return repr(value) if isinstance(value, WRITTEN_OUT) else f"{type(value).__name__}()"
