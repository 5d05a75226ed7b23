"""The OpenAPI 3.1 document, made from the table of routes.

Programs make clients from it: tests/server/clients does so with a generator for Python and one for
TypeScript. Where these generators know only a part of JSON Schema, the document keeps to that part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from inspect import cleandoc
from typing import Any

import msgspec

from heatsink import __version__

from .problems import MEDIA_TYPE
from .requests import LINES, RETRY_HEADER, Route
from .shapes import Problem

TOPICS = {
    "/v1/conversations": "Conversations",
    "/v1/counters": "Counters",
    "/v1/timelines": "Timelines",
    "/v1/follows": "Timelines",
    "/v1/bulk": "Bulk actions",
    "/v1/work": "Remote workers",
    "/v1/controls": "Bulk actions",
    "/v1/queue-partitions": "Bulk actions",
    "/v1/schedules": "Bulk actions",
    "/v1/heat": "Keys and decisions",
    "/v1/keys": "Keys and decisions",
    "/v1/decisions": "Keys and decisions",
    "/v1/settings": "Keys and decisions",
}
"""What calls are about, by how their paths begin. Generated clients have a module per topic."""
OTHERS = "This server"
LINE = "x-line-schema"
"""The schema of one line, beside the schema of a body of lines."""
JSON = "application/json"
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
    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of the routes."""
    routes = list(routes)
    types = [Problem, *_types(routes)]
    found, components = msgspec.json.schema_components(
        types, schema_hook=_any_json, ref_template=REFERENCE
    )
    schemas = {id(kind): _plain(schema) for kind, schema in zip(types, found, strict=True)}
    components = {name: _plain(schema) for name, schema in components.items()}
    queries = {route.query.__name__ for route in routes}
    sent = _reached([schemas[id(route.body)] for route in routes if route.body], components)
    optional = sent | {Problem.__name__}  # whose fields may be missing
    for name in components.keys() - queries:
        change = _with_optional if name in optional else _with_required
        components[name] = change(components[name])
    maker = _Maker(schemas, components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = maker.operation(route)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Heatsink", "version": __version__},
        "tags": [{"name": name} for name in dict.fromkeys([*TOPICS.values(), OTHERS])],
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {name: components[name] for name in components if name not in queries},
            "securitySchemes": {"bearer": bearer},
        },
    }


def topic_of(path: str) -> str:
    return next((name for start, name in TOPICS.items() if path.startswith(start)), OTHERS)


def _any_json(_: type) -> dict[str, Any]:
    """Return the schema of items, which may be any JSON: their content is the application's own."""
    return {"description": "Any JSON."}


def _types(routes: list[Route]) -> list[Any]:
    kinds = [kind for route in routes for kind in (route.answer, route.body, route.query)]
    return list({id(kind): kind for kind in kinds if kind is not None}.values())


# -- schemas that generators understand --------------------------------------------------------


def _plain(schema: Any) -> Any:
    """Return a schema in which lists replace tuples, since generators of clients know no tuples.

    Every list says of what kind its items are.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _plain(part) for name, part in schema.items()}
    if made.get("type") == "array":
        places = made.pop("prefixItems", [])
        alike = all(place == places[0] for place in places)
        of = {} if not places else places[0] if alike else {"anyOf": places}
        made["items"] = made.get("items") or of
    if isinstance(made.get("description"), str):
        made["description"] = cleandoc(made["description"])
    return made


def _with_required(schema: dict[str, Any]) -> dict[str, Any]:
    """Mark all fields of an answer as required.

    A field with a default is sent, too, so callers can rely on it.
    """
    fields = schema.get("properties")
    if fields is None:
        return schema
    needed = [name for name, part in fields.items() if "default" in part]
    plain = {name: _without(part, "default") for name, part in fields.items()}
    return {**schema, "properties": plain, "required": [*schema["required"], *needed]}


def _with_optional(schema: dict[str, Any]) -> dict[str, Any]:
    """Move the defaults of a request's fields into their descriptions.

    openapi-typescript would take a field with a default for one that is always there.
    """
    fields = schema.get("properties")
    if fields is None:
        return schema
    return {**schema, "properties": {name: _in_words(part) for name, part in fields.items()}}


def _in_words(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("default") in (None, ""):
        return _not_null(_without(part, "default"))
    words = [part.get("description", ""), f"Default: {json.dumps(part['default'])}."]
    return {**_without(part, "default"), "description": " ".join(words).strip()}


def _without(part: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != name}


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that does not allow null: callers leave out what is optional."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    if not kinds:
        return schema
    return kinds[0] if len(kinds) == 1 else {**schema, "anyOf": kinds}


def _reached(schemas: Iterable[Any], components: Mapping[str, Any]) -> set[str]:
    """Return the names of the components that the schemas use, directly or through others."""
    names: set[str] = set()
    open_ends = list(schemas)
    while open_ends:
        end = open_ends.pop()
        if isinstance(end, list):
            open_ends += end
        elif isinstance(end, dict):
            open_ends += end.values()
            name = str(end.get("$ref", "")).rpartition("/")[2]
            if name and name not in names:
                names.add(name)
                open_ends.append(components[name])
    return names


# -- operations --------------------------------------------------------------------------------


class _Maker:
    def __init__(self, schemas: dict[int, Any], components: dict[str, Any]) -> None:
        self._schemas = schemas
        self._components = components

    def operation(self, route: Route) -> dict[str, Any]:
        made: dict[str, Any] = {
            "tags": [topic_of(route.path)],
            "summary": route.summary,
            "operationId": route.name,
            "parameters": [*map(_path_parameter, route.parameters), *self._query(route)],
            "responses": self._responses(route),
        }
        if route.scope is None:
            made["security"] = []
        else:
            made["description"] = f"Scope: {route.scope}."
        if route.takes_body:
            made["requestBody"] = self._body(route)
        if route.retry_key:
            made["parameters"].append({**KEY_HEADER, "description": route.retry_key})
        return made

    def _query(self, route: Route) -> list[dict[str, Any]]:
        schema = self._components[route.query.__name__]
        return [_query_parameter(name, part) for name, part in schema["properties"].items()]

    def _body(self, route: Route) -> dict[str, Any]:
        if route.body is not None:
            schema = self._schemas[id(route.body)]
            return {"required": True, "content": {JSON: {"schema": schema}}}
        item = {"description": "Any JSON."}
        content = {JSON: {"schema": {"type": "array", "items": item}}, LINES: _lines(item)}
        return {"required": True, "content": content, "description": "The items."}

    def _answer(self, route: Route) -> dict[str, Any]:
        """Return the content of a successful response.

        The schema is that of the answer if it is JSON.
        """
        schema, text = self._schemas[id(route.answer)], {"schema": {"type": "string"}}
        known = {JSON: {"schema": schema}, LINES: _lines(schema)}
        return {kind: known.get(kind, text) for kind in route.media_types}

    def _responses(self, route: Route) -> dict[str, Any]:
        answer = self._answer(route)
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
    if route.takes_body:
        found.update(WITH_BODY)
    return sorted(found)


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameter(name: str, part: dict[str, Any]) -> dict[str, Any]:
    schema = {**_not_null(part)}
    if schema.get("default", "") is None:
        del schema["default"]
    about = {"description": schema.pop("description")} if "description" in schema else {}
    return {"name": name, "in": "query", "required": False, "schema": schema, **about}


def _lines(of: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a stream of lines. Generators of clients treat it as bytes."""
    return {"schema": {"type": "string", "format": "binary"}, LINE: of}
