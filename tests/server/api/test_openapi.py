"""The document says what the server does, and strangers' requests never break it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from html import escape
from typing import Any
from urllib.parse import urlsplit

import pytest
from httpx import AsyncClient
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from heatsink.bulk.work.remote import ItemLease
from heatsink.server.api.docs_page import SERVER, example
from heatsink.server.api.openapi import document
from heatsink.server.api.table import ROUTES
from tests.planted import usually
from tests.processes import Served, serving

TOKEN = ItemLease(
    *(0, "gone:0", "part", "batch", "ada", "resize", "resize/ada", False, 0, 0, 0, 10_000),
    *(0.0, 5, 1e9, 1.0, 300.0),
).token
FIXED = """
POST /v1/conversations/{key}/messages
GET /v1/conversations/{key}/messages
GET /v1/conversations/{key}/messages/{id}
DELETE /v1/conversations/{key}/messages/{id}
DELETE /v1/conversations/{key}/messages
POST /v1/counters/{key}
GET /v1/counters/{key}
POST /v1/timelines/{user}/follows
POST /v1/follows
POST /v1/timelines/{user}/posts
GET /v1/timelines/{user}/home
POST /v1/bulk/{name}
GET /v1/bulk
GET /v1/bulk/{name}
GET /v1/bulk/{name}/failures
GET /v1/bulk/{name}/results
POST /v1/bulk/{name}/cancel
POST /v1/bulk/{name}/pause
POST /v1/bulk/{name}/resume
POST /v1/bulk/{name}/retry-failed
POST /v1/work/claim
POST /v1/work/renew
POST /v1/work/report
GET /v1/timelines
GET /v1/timelines/{user}/mode
PUT /v1/timelines/{user}/mode
DELETE /v1/timelines/{user}/mode
GET /v1/status
GET /v1/heat
POST /v1/heat
GET /v1/keys/{key}
PUT /v1/keys/{key}/pin
DELETE /v1/keys/{key}/pin
GET /v1/decisions
GET /v1/settings
GET /v1/controls
GET /v1/settings/{name}
PUT /v1/settings/{name}
DELETE /v1/settings/{name}
GET /v1/schedules
GET /v1/schedules/{name}
PUT /v1/schedules/{name}
DELETE /v1/schedules/{name}
POST /v1/schedules/{name}/pause
POST /v1/schedules/{name}/resume
GET /v1/queue-partitions
GET /v1/cluster
PUT /v1/queue-partitions/{partition}/pin
GET /v1/events
GET /v1/recent
GET /v1/reads
GET /metrics
GET /healthz
GET /readyz
"""


def test_the_paths_are_those_that_clients_rely_on() -> None:
    assert [route.label for route in ROUTES] == FIXED.split("\n")[1:-1]


def test_every_route_is_in_the_document() -> None:
    paths = document(ROUTES)["paths"]
    described = {
        f"{method.upper()} {path}" for path, methods in paths.items() for method in methods
    }
    assert described == {route.label for route in ROUTES}


def test_a_generated_client_has_no_two_things_of_one_name() -> None:
    described = document(ROUTES)
    operations = [each for path in described["paths"].values() for each in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
    for name, schema in described["components"]["schemas"].items():
        variable = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", name).lower()
        assert variable not in schema.get("properties", ()), name


def test_answers_have_all_fields_and_requests_may_omit_what_has_a_default() -> None:
    schemas = document(ROUTES)["components"]["schemas"]
    assert "lost" in schemas["BatchLine"]["required"]
    assert schemas["NewMessage"]["required"] == ["body"]
    assert schemas["NewMessage"]["properties"]["id"] == {"type": "string"}
    assert schemas["Add"]["properties"]["amount"]["description"] == "Default: 1."
    assert not [
        (name, field)
        for name, schema in schemas.items()
        for field, part in schema.get("properties", {}).items()
        if "default" in part
    ]


async def test_the_document_and_a_page_about_it_are_served(api: AsyncClient) -> None:
    served = (await api.get("/openapi.json")).json()
    assert served == document(ROUTES)
    openapi.from_dict(served).validate()
    page = await api.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"(src|href)=.(https?:)?//|@import|url\(", page.text)
    for route in ROUTES:
        assert f"{route.method} {route.path}" in page.text


async def test_the_page_has_a_link_and_an_example_for_each_call(api: AsyncClient) -> None:
    page = (await api.get("/docs")).text
    for path, methods in document(ROUTES)["paths"].items():
        for method, operation in methods.items():
            assert f'<a href="#{operation["operationId"]}">{method.upper()} {path}</a>' in page
            command = escape(example(method, path, operation)).replace(SERVER, "http://localhost")
            assert f"{command}</pre>" in page


async def test_the_page_lists_the_fields_of_every_body(api: AsyncClient) -> None:
    page = (await api.get("/docs")).text
    sections = dict(re.findall(r'<h3 id="(\w+)">(.*?)</section>', page, re.DOTALL))
    for route in ROUTES:
        operation = document([route])["paths"][route.path][route.method.lower()]
        for field in getattr(route.body, "__struct_fields__", ()):
            assert f"<code>{field} (body)</code>" in sections[operation["operationId"]], field
    assert "string or object with base64, required" in sections["append_message"]
    assert "another amount" in sections["add_to_counter"]


@pytest.mark.parametrize(
    ("host", "address"),
    [("localhost:9000", "http://localhost:9000"), ("[::1]:80", "http://[::1]:80")],
)
async def test_examples_have_the_address_of_the_page(
    api: AsyncClient, host: str, address: str
) -> None:
    page = (await api.get("/docs", headers={"host": host})).text
    assert f"{address}/v1/conversations" in page
    assert SERVER not in page


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if one.path != "/v1/events"], ids=lambda one: one.label
)
async def test_an_example_is_a_call_that_the_server_accepts(api: AsyncClient, route: Any) -> None:
    operation = document(ROUTES)["paths"][route.path][route.method.lower()]
    words = shlex.split(example(route.method, route.path, operation))
    assert "{" not in words[-1]
    body = words[words.index("-d") + 1].replace("TOKEN", TOKEN) if "-d" in words else None
    verb = words[words.index("-X") + 1] if "-X" in words else "GET" if body is None else "POST"
    headers = {"content-type": "application/json"} if body else {}
    path = urlsplit(words[-1]).path.replace("ACTION", "tag")
    answer = await api.request(verb, path, content=body, headers=headers)
    assert answer.status_code in (200, 201, 202, 404, 409, 503), answer.text
    assert answer.status_code not in (404, 409) or answer.status_code in route.problems


async def test_a_problems_type_leads_to_the_page(api: AsyncClient) -> None:
    page = (await api.get("/docs")).text
    for problem in (await api.get("/nope"), await api.get("/v1/counters/%00")):
        anchor = problem.json()["type"].removeprefix("/docs#")
        assert f'id="{anchor}"' in page


EXAMPLES = usually(1, full=6)
RARE = pytest.mark.full("to make wrong arguments takes a second for each call; `post` has most")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), "--store", "memory://") as served:
        yield served


def calls() -> Iterator[Any]:
    """Every operation with right and with wrong arguments, each as parameters of a test."""
    results: Any = openapi.from_dict(document(ROUTES)).get_all_operations()
    for operation in (each.ok() for each in results):
        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
            is_rare = mode is GenerationMode.NEGATIVE and operation.method != "post"
            if operation.path != "/v1/events":
                name = f"{operation.label}-{mode.value}"
                yield pytest.param(operation, mode, id=name, marks=[RARE] if is_rare else [])


@pytest.mark.parametrize(("operation", "mode"), list(calls()))
def test_nothing_that_strangers_send_is_a_mistake_of_ours(
    operation: Any, mode: GenerationMode, server: Served
) -> None:
    try:
        cases = operation.as_strategy(generation_mode=mode)
        cases.validate()
    except Unsatisfiable:
        pytest.skip("there is nothing to get wrong")

    @seed(6)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def send(case: Any) -> None:
        if operation.path == "/v1/work/claim" and mode is GenerationMode.POSITIVE:
            case.body["wait_s"] = 0
        case.call_and_validate(base_url=server.url, checks=CHECKS)

    try:
        send()
    except Unsatisfiable:
        pytest.skip("there is nothing to get wrong")
    assert server.process.poll() is None
