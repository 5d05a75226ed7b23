"""/docs: the OpenAPI document for people to read, without a script and without outside requests."""

from __future__ import annotations

from html import escape
from typing import Any

from heatsink import errors
from heatsink.service.api.problems import TITLES, UNKNOWN_TOKEN, anchor, named

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
    """Every error of ours, and what HTTP itself refuses."""
    rows = []
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.HeatsinkError):
            status, title = named(kind)
            text = f"{status} {title}: {(kind.__doc__ or '').splitlines()[0]}"
            rows.append(f'<tr id="{anchor(title)}"><td>{escape(text)}</td></tr>')
    for status, title in (*TITLES.items(), (401, UNKNOWN_TOKEN)):
        rows.append(f'<tr id="{anchor(title)}"><td>{status} {title}</td></tr>')
    return rows
