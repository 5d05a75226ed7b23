"""The page /docs: every call of the API with an example to copy.

The page works without scripts and loads nothing from other servers.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from heatsink import errors

from .openapi import LINE
from .problems import MEDIA_TYPE, TITLES, UNKNOWN_TOKEN, anchor, named

CODE = re.compile(r"`([^`]+)`")
SERVER = "http://127.0.0.1:8321"
IN_PATHS = {
    "/v1/conversations/{key}": "/v1/conversations/conv_abc123",
    "/v1/counters/{key}": "/v1/counters/video:42:views",
    "/v1/keys/{key}": "/v1/keys/conv_abc123",
    "/v1/settings/{name}": "/v1/settings/rules.buckets_max",
    "/v1/schedules/{name}/": "/v1/schedules/report/",
    "/v1/schedules/{name}": "/v1/schedules/report",
    "/messages/{id}": "/messages/0192f0c1-7a5b-7c3e-9d41-5b8f3a2e6c10",
    "/v1/timelines/{user}": "/v1/timelines/ada",
    "/v1/bulk/{name}/": "/v1/bulk/BATCH/",
    "/v1/bulk/{name}": "/v1/bulk/BATCH",
    "{partition}": "0",
}
BODIES = {
    "append_message": '{"body": "hey"}',
    "add_to_counter": '{"amount": 1}',
    "follow": '{"author": "grace"}',
    "follow_many": '{"pairs": [["ada", "grace"]]}',
    "add_post": '{"body": "hello"}',
    "submit_batch": '[{"to": 1}, {"to": 2}]',
    "pin_key": '{"buckets": 4, "reason": "launch at noon"}',
    "report_heat": '{"keys": [{"key": "conv_abc123", "writes_s": 950}], "server": "api-7"}',
    "pin_mode": '{"mode": "pull", "reason": "on television tonight"}',
    "set_schedule": '{"action": "report", "cron": "0 9 * * MON-FRI"}',
    "set_setting": '{"value": 16, "reason": "pages cost too many queries"}',
    "pin_partition": '{"workers": 8, "reason": "slow items"}',
    "claim_items": '{"actions": {"resize": {}}, "wait_s": 1}',
    "renew_items": '{"tokens": ["TOKEN"]}',
    "report_items": '{"items": [{"token": "TOKEN", "outcome": "done"}]}',
}
"""By operation. A call without a body needs none."""
ITEMS = {"application/json": "an array of items", "application/x-ndjson": "one item per line"}

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif;
  --soft: #5b6470; --line: #dde2e8; --code: #eef2f6; --accent: #1666ab }
@media (prefers-color-scheme: dark) {
  :root { --soft: #a3acb8; --line: #343b45; --code: #252b33; --accent: #62b2f2 }
  body { background: #14171b; color: #e8ebef }
}
* { box-sizing: border-box }
body { max-width: 75rem; margin: 0 auto; padding: 1rem clamp(.75rem, 2vw, 2rem) }
a { color: var(--accent) }
code, pre, h3 { font-family: ui-monospace, monospace; font-size: .92em }
h2 { margin: 2.5rem 0 0; border-bottom: 1px solid var(--line) }
h3 { margin: 2rem 0 0; font-size: 1rem; overflow-wrap: anywhere }
p { margin: .25rem 0; max-width: 80ch }
pre { margin: .5rem 0; padding: .6rem .8rem; border-radius: 6px; background: var(--code);
  white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; cursor: copy }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; font-weight: normal }
small { color: var(--soft) }
nav ul { margin: 0 0 .75rem; padding: 0; list-style: none; font-size: .87rem }
nav li { padding: .1rem 0; overflow-wrap: anywhere }
nav p { margin: 0; font-weight: 600 }
h1 { margin: .5rem 0 }
header { margin-bottom: 1.5rem }
main > h2:first-child { margin-top: 0 }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px }
:target { scroll-margin-top: 1rem }
@media (min-width: 60rem) {
  .page { display: grid; grid-template-columns: 17rem minmax(0, 1fr); gap: 2.5rem }
  nav { position: sticky; top: 1rem; max-height: calc(100vh - 2rem); overflow-y: auto }
  td:first-child, th { width: 30% }
}
@media (max-width: 40rem) {
  tr { display: block; padding: .3rem 0; border-bottom: 1px solid var(--line) }
  td, th { display: block; padding: 0; border: 0 }
}
"""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} API</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><header><p><a href="/">Dashboard</a></p><h1>{title} API</h1>
<p>Version {version}. For machines: <a href="/openapi.json">/openapi.json</a>.</p>
<p>Every call has an example: one click selects all of it. The examples call {server}.
If the server was started with <code>--token</code>,
add <code>-H 'Authorization: Bearer TOKEN'</code>. Replace the words in capitals.</p>
<p>Errors are <code>application/problem+json</code> with <code>type</code>, <code>title</code>,
<code>status</code>, <code>detail</code> and, where there is one, <code>field</code>.</p>
</header><div class="page">
<nav aria-label="Calls" tabindex="0">{links}<p><a href="#errors">Errors</a></p></nav>
<main>{topics}
<h2 id="errors">Errors</h2><table>{problems}</table></main></div></body></html>
"""


def docs_page(described: dict[str, Any]) -> str:
    """Return the HTML of the page /docs, from an OpenAPI document."""
    topics: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
        tag["name"]: [] for tag in described["tags"]
    }
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            topics[operation["tags"][0]].append((method, path, operation))
    schemas = described["components"]["schemas"]
    return PAGE.format(
        title=escape(described["info"]["title"]),
        version=escape(described["info"]["version"]),
        server=SERVER,
        style=STYLE,
        links="".join(f"<p>{topic}</p>{_links(calls)}" for topic, calls in topics.items()),
        topics="".join(
            f"<h2>{topic}</h2>{''.join(_operation(*call, schemas) for call in calls)}"
            for topic, calls in topics.items()
        ),
        problems="\n".join(_problems()),
    )


def _links(calls: list[tuple[str, str, dict[str, Any]]]) -> str:
    lines = (
        f'<li><a href="#{operation["operationId"]}">{method.upper()} {escape(path)}</a></li>'
        for method, path, operation in calls
    )
    return f"<ul>{''.join(lines)}</ul>"


def example(method: str, path: str, operation: dict[str, Any]) -> str:
    """Return a curl command that makes the call."""
    for name, value in IN_PATHS.items():
        path = path.replace(name, value)
    body = BODIES.get(operation["operationId"])
    if operation["operationId"] == "submit_batch":
        path = path.replace("BATCH", "ACTION")
    words = ["curl"]
    if method.upper() not in ("GET", "POST") or (method.upper() == "POST" and body is None):
        words.append(f"-X {method.upper()}")
    if body is not None:
        words.append(f"-H 'content-type: application/json' -d '{body}'")
    return " ".join([*words, f"{SERVER}{path}"])


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    rows = [
        _row(f"{part['name']} ({part['in']})", part.get("description") or _kind(part["schema"]))
        for part in operation["parameters"]
    ]
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        rows += _body_rows(media_type, content["schema"], schemas)
    rows += [
        _row(status, f"{answer['description']}{_answers(answer, schemas)}")
        for status, answer in operation["responses"].items()
        if int(status) < 300 or status in ("404", "409", "410", "422")
    ]
    scope = operation.get("description", "")
    return (
        f'<section><h3 id="{operation["operationId"]}">{method.upper()} {escape(path)}</h3>'
        f"<p>{_prose(operation['summary'])} <small>{escape(scope)}</small></p>"
        f"<pre>{escape(example(method, path, operation))}</pre>"
        f"<table>{''.join(rows)}</table></section>"
    )


def _body_rows(media_type: str, schema: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    """Return a row for the body, and one for each of its fields."""
    whole = schemas[_kind(schema)] if "$ref" in schema else schema
    fields = whole.get("properties", {})
    about = whole.get("description", "an object" if fields else ITEMS[media_type])
    rows = [_row("body", f"{media_type}: {about}")]
    needed = whole.get("required", [])
    for name, field in fields.items():
        use = "required" if name in needed else "optional"
        text = f"{_kind(field, schemas)}, {use}"
        about = _about(field)
        rows.append(_row(f"{name} (body)", f"{text}. {about}" if about else text))
    return rows


def _about(schema: dict[str, Any]) -> str:
    """Return a field's description. It may stand in the schema or in one of its alternatives."""
    found = [schema, *schema.get("anyOf", [])]
    return next((each["description"] for each in found if "description" in each), "")


def _row(name: str, text: str) -> str:
    head = f'<th scope="row"><code>{escape(name)}</code></th>'
    return f"<tr>{head}<td>{_prose(text)}</td></tr>"


def _prose(text: str) -> str:
    """Return the HTML of a text in which `backticks` mark code."""
    return CODE.sub(r"<code>\1</code>", escape(text))


def _answers(answer: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return in words what a response contains. All errors contain the same."""
    held = (
        f"{kind}, {_held(content, schemas)}"
        for kind, content in answer["content"].items()
        if kind != MEDIA_TYPE.decode()
    )
    return "".join(f": {each}" for each in held)


def _held(content: dict[str, Any], schemas: dict[str, Any]) -> str:
    if LINE in content:
        return f"in each line {_kind(content[LINE], schemas)}"
    return _kind(content["schema"], schemas)


def _kind(schema: dict[str, Any], schemas: dict[str, Any] | None = None) -> str:
    """Return the kind of a value in words. With `schemas`, an object is shown by its fields."""
    if "$ref" in schema:
        name = str(schema["$ref"].rsplit("/", 1)[1])
        fields = schemas[name].get("properties") if schemas else None
        return f"object with {', '.join(fields)}" if fields else name
    if "anyOf" in schema:
        return " or ".join(_kind(each, schemas) for each in schema["anyOf"])
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict) and schemas:
        return f"array of {_kind(schema['items'], schemas)}"
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    return str(schema.get("type", "any JSON"))


def _problems() -> list[str]:
    """Return a table row for each error of Heatsink, and for each error of HTTP itself."""
    rows = []
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.HeatsinkError):
            status, title = named(kind)
            text = f"{status} {title}: {(kind.__doc__ or '').splitlines()[0]}"
            rows.append(f'<tr id="{anchor(title)}"><td>{escape(text)}</td></tr>')
    for status, title in (*TITLES.items(), (401, UNKNOWN_TOKEN)):
        rows.append(f'<tr id="{anchor(title)}"><td>{status} {title}</td></tr>')
    return rows
