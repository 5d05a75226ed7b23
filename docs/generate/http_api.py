"""The HTTP API, from its OpenAPI document: calls by the first word of their path, then types."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from docs.generate.markdown import code, paragraphs, table
from heatsink.server.api.openapi import LINE, document
from heatsink.server.api.table import ROUTES

Schema = dict[str, Any]
NO_ANSWER = "application/problem+json"


def markdown() -> str:
    described = document(ROUTES)
    calls = [
        (method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    groups = groupby(sorted(calls, key=_group), key=_group)
    sections = [_group_section(name, list(inside)) for name, inside in groups]
    schemas = described["components"]["schemas"]
    types = [_type_section(name, schema) for name, schema in sorted(schemas.items())]
    return paragraphs(*sections, "## Types", *types)


def _group(call: tuple[str, str, Schema]) -> str:
    _, path, _ = call
    words = path.removeprefix("/v1").split("/")
    return words[1] if path.startswith("/v1") else "process"


def _group_section(name: str, calls: list[tuple[str, str, Schema]]) -> str:
    title = name.replace("-", " ").capitalize()
    return paragraphs(f"## {title}", *(_call_section(*call) for call in calls))


def _call_section(method: str, path: str, operation: Schema) -> str:
    parameters = [_parameter(each) for each in operation["parameters"] if each["in"] != "path"]
    takes = operation.get("requestBody", {}).get("content", {})
    answers = {
        status: response["content"]
        for status, response in operation["responses"].items()
        if set(response["content"]) != {NO_ANSWER}
    }
    refusals = [code(status) for status in operation["responses"] if status not in answers]
    rows = [
        ["takes", _content(takes)],
        ["answers", ", ".join(f"{code(s)} {_content(content)}" for s, content in answers.items())],
        ["refuses", ", ".join(refusals)],
        ["scope", _scope(operation)],
    ]
    return paragraphs(
        f"### {method} {path}",
        operation["summary"],
        table(["", ""], [row for row in rows if row[1]]),
        table(["parameter", "in", "type", "default", ""], parameters) if parameters else "",
    )


def _scope(operation: Schema) -> str:
    scope = operation.get("description", "").removeprefix("Scope: ").rstrip(".")
    return code(scope) if scope else "none: it needs no token"


def _content(content: Schema) -> str:
    kinds = ((kind, part) for kind, part in content.items() if kind != NO_ANSWER)
    return ", ".join(f"{_held(part)} as {code(kind)}" for kind, part in kinds)


def _held(content: Schema) -> str:
    return f"lines of {_type(content[LINE])}" if LINE in content else _type(content["schema"])


def _parameter(parameter: Schema) -> list[str]:
    schema = parameter["schema"]
    default = code(str(schema["default"])) if "default" in schema else ""
    text = parameter.get("description", "")
    return [code(parameter["name"]), parameter["in"], _type(schema), default, text]


def _type_section(name: str, schema: Schema) -> str:
    required = schema.get("required", [])
    rows = [
        [code(field), _type(part), "" if field in required else "may be left out"]
        for field, part in schema.get("properties", {}).items()
    ]
    text = schema.get("description", "")
    return paragraphs(f"### {name}", text, table(["field", "type", ""], rows) if rows else "")


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        most = f"at most {schema['maxItems']:,} " if "maxItems" in schema else ""
        return f"list of {most}{_type(schema['items'])}" if "items" in schema else "list"
    if "enum" in schema:
        return " or ".join(code(str(value)) for value in schema["enum"])
    bounds = [f"{word} {schema[key]:,}" for word, key in BOUNDS if key in schema]
    return " ".join([schema.get("type", "any JSON"), *bounds])


BOUNDS = (("from", "minimum"), ("to", "maximum"))
