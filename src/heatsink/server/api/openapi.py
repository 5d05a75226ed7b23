"""The OpenAPI 3.1 document, made from the table of routes, and the page /docs.

The page works without scripts and loads nothing from other servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import msgspec

from heatsink import __version__, errors

from .problems import MEDIA_TYPE, TITLES, UNKNOWN_TOKEN, anchor, named
from .requests import Route
from .shapes import Problem

REFERENCE = "#/components/schemas/{name}"
ANY_CALL = (400, 421, 503)
WITH_TOKEN = (401, 403)
WITH_BODY = (408, 413, 415)
MEANINGS = {
    200: "Done",
    201: "Created",
    202: "Accepted",
    400: "The request is wrong: the problem names the field",
    401: "A token is needed",
    403: "The token's scope does not allow it",
    404: "Not found",
    405: "Another method is needed",
    408: "The body arrived too slowly",
    409: "The id was used before with other content",
    410: "The token is too old: whether it was counted is unknown",
    413: "Too large",
    415: "Another media type is needed",
    422: "The Idempotency-Key was used before with another action, other items or options",
    421: "The server does not answer to this host",
    429: "A partition is throttled: retry after Retry-After",
    503: "Unavailable: retry with the same id after Retry-After",
}
KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Id of the batch: a repeated request with the same key adds no second batch.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]+$"},
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of the routes."""
    routes = list(routes)
    types = [Problem, *_types(routes)]
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=_any_json, ref_template=REFERENCE
    )
    known = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    maker = _Maker(known, components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = maker.operation(route)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Heatsink", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _without(components, {route.query.__name__ for route in routes}),
            "securitySchemes": {"bearer": bearer},
        },
    }


def _any_json(_: type) -> dict[str, Any]:
    """The schema of items, whose content is the application's own."""
    return {"description": "Any JSON."}


def _types(routes: list[Route]) -> list[Any]:
    kinds = [kind for route in routes for kind in (route.answer, route.body, route.query)]
    return list({id(kind): kind for kind in kinds if kind is not None}.values())


def _without(schemas: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: schema for name, schema in schemas.items() if name not in names}


class _Maker:
    def __init__(self, schemas: dict[int, Any], components: dict[str, Any]) -> None:
        self._schemas = schemas
        self._components = components

    def operation(self, route: Route) -> dict[str, Any]:
        made: dict[str, Any] = {
            "summary": route.summary,
            "operationId": _operation_id(route),
            "parameters": [*map(_path_parameter, route.parameters), *self._query(route)],
            "responses": self._responses(route),
        }
        if route.scope is not None:
            made["security"] = [{}, {"bearer": []}]
            made["description"] = f"Scope: {route.scope}."
        if route.body is not None:
            made["requestBody"] = self._body(self._schemas[id(route.body)], route.body_types)
        elif route.stream and route.method == "POST":
            made["requestBody"] = _items_body(route)
            made["parameters"].append(KEY_HEADER)
        return made

    def _query(self, route: Route) -> list[dict[str, Any]]:
        schema = self._components[route.query.__name__]
        return [
            {"name": name, "in": "query", "required": False, **_not_null(part)}
            for name, part in schema["properties"].items()
        ]

    def _body(self, schema: Any, types: tuple[str, ...]) -> dict[str, Any]:
        return {"required": True, "content": {kind: {"schema": schema} for kind in types}}

    def _responses(self, route: Route) -> dict[str, Any]:
        answer = {route.media_type: {"schema": self._schemas[id(route.answer)]}}
        made: dict[str, Any] = {
            str(status): {"description": MEANINGS[status], "content": answer}
            for status in route.statuses
        }
        problem = {MEDIA_TYPE.decode(): {"schema": self._schemas[id(Problem)]}}
        for status in _refusals(route):
            made.setdefault(str(status), {"description": MEANINGS[status], "content": {}})
            made[str(status)]["content"] = {**made[str(status)]["content"], **problem}
        return made


def _refusals(route: Route) -> list[int]:
    found = {*ANY_CALL, *route.problems}
    if route.scope is not None:
        found.update(WITH_TOKEN)
        found.add(429)
    else:
        found.add(403)
    if route.body is not None or route.stream:
        found.update(WITH_BODY)
    return sorted(found)


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _not_null(part: dict[str, Any]) -> dict[str, Any]:
    """The parameter without null: an optional parameter is left out instead."""
    kinds = [kind for kind in part.get("anyOf", []) if kind != {"type": "null"}]
    schema = kinds[0] if kinds else part
    made: dict[str, Any] = {"schema": {k: v for k, v in schema.items() if k != "description"}}
    if "description" in schema:
        made["description"] = schema["description"]
    if part.get("default") is not None:
        made["schema"]["default"] = part["default"]
    return made


def _items_body(route: Route) -> dict[str, Any]:
    array, lines = route.body_types
    content = {array: {"schema": {"type": "array"}}, lines: {"schema": {}}}
    return {"required": True, "content": content, "description": "The items."}


def _operation_id(route: Route) -> str:
    words = [part.strip("{}").replace("-", "_") for part in route.path.split("/") if part]
    return "_".join([route.method.lower(), *(word for word in words if word != "v1")])


STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, h3 { font-family: ui-monospace, monospace }
h3 { margin: 2rem 0 0; font-size: 1rem; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0 }
small { opacity: .75 }
"""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} API</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><h1>{title} API</h1>
<p>Version {version}. For machines: <a href="/openapi.json">/openapi.json</a>.
Errors are <code>application/problem+json</code> with <code>type</code>, <code>title</code>,
<code>status</code>, <code>detail</code> and, where there is one, <code>field</code>.</p>
{operations}
<h2>Errors</h2><table>{problems}</table></body></html>
"""


def docs_page(described: dict[str, Any]) -> str:
    """The page /docs, from an OpenAPI document."""
    operations = [
        _operation(method, path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    return PAGE.format(
        title=escape(described["info"]["title"]),
        version=escape(described["info"]["version"]),
        style=STYLE,
        operations="\n".join(operations),
        problems="\n".join(_problems()),
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = [
        _row(f"{part['name']} ({part['in']})", part.get("description") or _kind(part["schema"]))
        for part in operation["parameters"]
    ]
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(_row("body", f"{media_type}: {_kind(content['schema'])}"))
    rows += [
        _row(status, f"{answer['description']}: {_answers(answer)}")
        for status, answer in operation["responses"].items()
        if int(status) < 300 or status in ("404", "409", "410", "422")
    ]
    scope = operation.get("description", "")
    return (
        f'<h3 id="{operation["operationId"]}">{method.upper()} {escape(path)}</h3>'
        f"<p>{escape(operation['summary'])} <small>{escape(scope)}</small></p>"
        f"<table>{''.join(rows)}</table>"
    )


def _row(name: str, text: str) -> str:
    return f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>"


def _answers(answer: dict[str, Any]) -> str:
    return ", ".join(
        f"{kind} {_kind(content['schema'])}" for kind, content in answer["content"].items()
    )


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    return str(schema.get("type", "any JSON"))


def _problems() -> list[str]:
    """All Heatsink errors, and those of HTTP itself."""
    rows = []
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.HeatsinkError):
            status, title = named(kind)
            text = f"{status} {title}: {(kind.__doc__ or '').splitlines()[0]}"
            rows.append(f'<tr id="{anchor(title)}"><td>{escape(text)}</td></tr>')
    for status, title in (*TITLES.items(), (401, UNKNOWN_TOKEN)):
        rows.append(f'<tr id="{anchor(title)}"><td>{status} {title}</td></tr>')
    return rows
