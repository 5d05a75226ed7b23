"""The OpenAPI 3.1 document, made from the table of routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from heatsink import __version__

from .problems import MEDIA_TYPE
from .requests import RETRY_HEADER, Route
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
    403: "The token's scope does not allow this call",
    404: "Not found",
    405: "The path does not allow this method",
    408: "The body arrived too slowly",
    409: "The id was used before with other content",
    410: "The token is too old: the server cannot tell whether the add was counted",
    413: "The body is too large",
    415: "The body has another media type than this call accepts",
    422: "The Idempotency-Key was used before with another action, other items or options",
    421: "The server does not answer to this host name",
    429: "A partition is throttled: retry after Retry-After",
    503: "Unavailable: retry with the same id after Retry-After",
}
KEY_HEADER = {
    "name": RETRY_HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]+$"},
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of the routes."""
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
    """Return the schema of items, which may be any JSON: their content is the application's own."""
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
        if route.retry_key:
            made["parameters"].append({**KEY_HEADER, "description": route.retry_key})
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
            meaning = route.problems.get(status) or MEANINGS[status]
            made.setdefault(str(status), {"description": meaning, "content": {}})
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
    """Return the schema without null: callers omit an optional parameter, and never send null."""
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
