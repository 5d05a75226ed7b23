"""A settings object: its fields with defaults, and what is said below each in the source."""

from __future__ import annotations

import ast
import inspect
from pkgutil import resolve_name
from textwrap import dedent
from typing import Any

import msgspec

from .markdown import code, paragraphs, table


def markdown(name: str) -> str:
    kind = settings_object(name)
    texts = field_texts(kind)
    rows = [
        [code(field.name), code(_default(field)), texts.get(field.name, "")]
        for field in msgspec.structs.fields(kind)
    ]
    return paragraphs(inspect.getdoc(kind) or "", table(["field", "default", ""], rows))


def settings_object(name: str) -> type[msgspec.Struct]:
    kind: type[msgspec.Struct] = resolve_name(name)
    return kind


def field_texts(kind: type) -> dict[str, str]:
    """The string below a field, as type checkers and editors read it too."""
    (body,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    factory: Any = field.default_factory
    value = field.default if factory is msgspec.NODEFAULT else factory()
    plain = value is None or isinstance(value, bool | int | float | str | tuple | list | dict)
    return repr(value) if plain else f"{type(value).__name__}()"
