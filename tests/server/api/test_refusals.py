"""What the server refuses, and how: problem+json, whatever it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from httpx import AsyncClient, Response

from heatsink import Heatsink, errors
from heatsink.errors import InvalidSetting
from heatsink.server.api.problems import named, problem_of
from heatsink.server.api.requests import RequestLimits, parse_token
from heatsink.server.process import ServeSettings

from .conftest import Asker

MESSAGES = "/v1/conversations/conv/messages"
TOKENS = tuple(map(parse_token, ("read:reader-1", "operate:writer-1", "admin:boss-0001")))


def check(answer: Response, status: int, field: str | None = None) -> dict[str, Any]:
    problem: dict[str, Any] = answer.json()
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert problem["status"] == status
    assert problem["type"].startswith("/docs#")
    assert problem["title"]
    assert problem["detail"]
    assert problem.get("field") == field
    return problem


async def test_an_unknown_path(api: AsyncClient) -> None:
    for path in ("/nope", "/", "/v1", "/v1/conversations/x", "/v2/heat", "/docs/x", "//v1/heat"):
        check(await api.get(path), 404)


async def test_an_unknown_path_names_the_nearest_one(api: AsyncClient) -> None:
    told = check(await api.get("/v1/conversation/k/messages"), 404)["detail"]
    assert told == (
        "there is nothing at this path: see /docs; did you mean /v1/conversations/{key}/messages?"
    )
    assert "did you mean" not in check(await api.get("/zzz"), 404)["detail"]
    browser = {"accept": "text/html,application/xhtml+xml"}
    page = await api.get("/nope", headers=browser)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is no page at this address" in page.text
    check(await api.get("/v1/nope", headers=browser), 404)
    verbs = check(await api.post("/v1/bulk/k1/explode"), 404)["detail"]
    assert verbs.startswith("there is no 'explode' at /v1/bulk/k1/: use one of cancel, ")
    near = check(await api.post("/v1/bulk/k1/pasue"), 404)["detail"]
    assert near == "there is no 'pasue' at /v1/bulk/k1/: did you mean 'pause'?"


async def test_a_slash_at_the_end_or_in_a_key_is_not_found_and_says_the_cure(
    api: AsyncClient,
) -> None:
    for method, path in (("POST", f"{MESSAGES}/"), ("GET", f"{MESSAGES}/"), ("GET", "/v1/heat/")):
        told = check(await api.request(method, path), 404)["detail"]
        assert told.endswith("did you mean the path without the slash at its end?")
    for method in ("GET", "POST"):
        told = check(await api.request(method, "/v1/conversations/a/b/messages"), 404)["detail"]
        assert told.endswith(
            "did you mean /v1/conversations/a%2Fb/messages? Write a slash in a key as %2F"
        )
    many = "/v1/conversations" + "/x" * 2_000
    assert "%2F" not in check(await api.get(many), 404)["detail"]


async def test_a_body_that_is_not_called_json_names_the_header(api: AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    told = check(await api.post(MESSAGES, content=b"hey", headers=headers), 400, "body")["detail"]
    assert told == "the body is not JSON: invalid character at byte 0"
    told = check(await api.post(MESSAGES, data={"body": "hey"}), 415)["detail"]
    assert told == "the body must be JSON: send the header 'content-type: application/json'"


async def test_a_wrong_method_says_which_are_right(api: AsyncClient) -> None:
    answer = await api.request("PATCH", MESSAGES)
    check(answer, 405)
    assert answer.headers["allow"] == "DELETE, GET, POST"
    check(await api.post("/openapi.json"), 405)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"{}", "body"),
        (b'{"body": 1}', "body"),
        (b'{"body": "x", "other": 1}', "other"),
        (b'{"body": {"base64": "", "other": 1}}', "body.other"),
        (b'{"body": "x", "id": 7}', "id"),
        (b'{"body": {"base64": "%%%"}}', "body.base64"),
        (b'"\xff"', "body"),
        (b'{"body": ' + b"[" * 100_000, "body"),
    ],
)
async def test_a_body_that_is_not_as_expected(api: AsyncClient, body: bytes, field: str) -> None:
    headers = {"content-type": "application/json"}
    answer = await api.post(MESSAGES, content=body, headers=headers)
    check(answer, 400, field)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'"\\ud83d\\ude00 \\ud800"', "\\ud800 is a lone surrogate, which is not text"),
        (b'"\\udC00"', "\\udC00 is a lone surrogate, which is not text"),
        (b'"\xff"', "it is not UTF-8"),
        (b'"\xed\xa0\x80"', "it is not UTF-8"),
        (b'"half', "it ends too early"),
    ],
)
async def test_text_that_is_none_is_refused_with_the_reason(
    api: AsyncClient, text: bytes, said: str
) -> None:
    headers = {"content-type": "application/json"}
    for path, body in (
        (MESSAGES, b'{"body": %s}' % text),
        ("/v1/timelines/ada/posts", b'{"body": %s}' % text),
        ("/v1/bulk/tag", b"[%s]" % text),
    ):
        answer = await api.post(path, content=body, headers=headers)
        assert check(answer, 400, "body")["detail"] == f"the body is not JSON: {said}"
    lines = {"content-type": "application/x-ndjson"}
    answer = await api.post("/v1/bulk/tag", content=b"1\n%s\n" % text, headers=lines)
    assert check(answer, 400, "body")["detail"] == f"line 2 is not JSON: {said}"


@pytest.mark.parametrize("key", [b"", b"a\tb", b"\xed\xa0\x80", b"x" * 257])
async def test_an_idempotency_key_that_is_no_name(api: AsyncClient, key: bytes) -> None:
    headers = [(b"idempotency-key", key)]
    check(await api.post("/v1/bulk/tag", json=[], headers=headers), 400, "Idempotency-Key")


async def test_items_that_are_nested_too_deeply(api: AsyncClient) -> None:
    deep = b"[" * 100_000
    for kind in ("application/json", "application/x-ndjson"):
        headers = {"content-type": kind}
        check(await api.post("/v1/bulk/tag", content=deep, headers=headers), 400, "body")


async def test_an_object_instead_of_items(api: AsyncClient) -> None:
    told = check(await api.post("/v1/bulk/tag", json={"action": "tag"}), 400, "body")["detail"]
    assert told == "the body must be an array of items; the path names their action"


async def test_another_media_type(api: AsyncClient) -> None:
    headers = {"content-type": "text/plain"}
    check(await api.post(MESSAGES, content=b'{"body":"x"}', headers=headers), 415)
    check(await api.post("/v1/bulk/tag", content=b"[]", headers=headers), 415)


@pytest.mark.parametrize("body", [b'{"body":"x"}', b"\x1f\x8b\x08"])
@pytest.mark.parametrize("path", [MESSAGES, "/v1/bulk/tag"])
async def test_a_compressed_body(api: AsyncClient, path: str, body: bytes) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    told = check(await api.post(path, content=body, headers=headers), 415)["detail"]
    assert "send the body uncompressed" in told


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("order=up", "order"),
        ("cursor=x", "cursor"),
        ("after=yesterday", "after"),
        ("before=2020-01-01T00:00:00", "before"),
        ("other=1", "other"),
        ("cursor=%ff", None),
        ("&".join(f"limit={n}" for n in range(99)), None),
    ],
)
async def test_a_query_that_is_not_as_expected(
    api: AsyncClient, query: str, field: str | None
) -> None:
    check(await api.get(f"{MESSAGES}?{query}"), 400, field)


async def test_the_field_is_named_by_the_librarys_own_refusals_too(api: AsyncClient) -> None:
    check(await api.post("/v1/counters/c", json={"amount": 2**70}), 400, "amount")
    told = check(await api.post("/v1/counters/c", json={"token": "x"}), 400, "token")
    assert told["detail"].startswith("token 'x' is not a UUID")
    for token in (uuid4(), UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")):
        told = check(await api.post("/v1/counters/c", json={"token": str(token)}), 400, "token")
        assert told["detail"].startswith("token")
    check(await api.post("/v1/bulk/tag?rate=fast", json=[]), 400, "rate")
    check(await api.put("/v1/keys/k/pin", json={"buckets": 5_000, "reason": "x"}), 400, "buckets")
    follow = {"author": "me"}
    check(await api.post("/v1/timelines/me/follows", json=follow), 400, "author")
    pairs = {"pairs": [["ann", "bob"], ["ann", "ann"]]}
    told = check(await api.post("/v1/follows", json=pairs), 400, "pairs")
    assert told["detail"] == "pairs[1]: author must not be the user: nobody follows themselves"


@pytest.mark.parametrize(
    ("pairs", "field"),
    [
        ([], "pairs"),
        ([["ann", "bob"]] * 1_001, "pairs"),
        ([["ann"]], "pairs[0]"),
        ([["ann", 5]], "pairs[0][1]"),
        ("ann", "pairs"),
    ],
)
async def test_pairs_that_are_none_or_too_many(api: AsyncClient, pairs: Any, field: str) -> None:
    check(await api.post("/v1/follows", json={"pairs": pairs}), 400, field)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Throttled("conv"), 429),
        (errors.Overloaded("busy"), 503),
        (errors.Unavailable("away"), 503),
        (errors.Closed("closed"), 503),
        (errors.WrongIncarnation("restored"), 503),
        (errors.NoTable("the table is gone"), 503),
        (errors.NoAccess("the token expired"), 503),
        (errors.Misconfigured("evicts"), 503),
        (errors.Conflict("taken"), 409),
        (errors.TokenExpired("old"), 410),
        (errors.InvalidKey("key is empty"), 400),
        (errors.NotFound("not there"), 404),
    ],
)
async def test_every_error_of_the_library_has_a_status(
    api: AsyncClient, hs: Heatsink, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(hs.log, "append", refuse)
    answer = await api.post(MESSAGES, json={"body": "x"})
    check(answer, status, "key" if isinstance(error, errors.InvalidKey) else None)
    assert ("retry-after" in answer.headers) == (status in (429, 503))


def test_a_long_detail_says_that_it_is_cut() -> None:
    assert problem_of(errors.InvalidSetting("x" * 1_000)).detail == "x" * 1_000
    assert problem_of(errors.InvalidSetting("x" * 1_001)).detail == "x" * 999 + "…"


def test_no_error_of_the_library_is_a_mistake_of_ours() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.HeatsinkError):
            assert named(kind)[0] in (400, 404, 409, 410, 422, 429, 503)


async def test_a_mistake_of_ours_gives_nothing_away(
    api: AsyncClient, hs: Heatsink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("the secret")

    monkeypatch.setattr(hs.log, "append", fail)
    answer = await api.post(MESSAGES, json={"body": "x"})
    assert "secret" not in str(check(answer, 500))


# -- limits ----------------------------------------------------------------------------------


async def test_a_body_that_is_too_large(asking: Asker) -> None:
    limits = RequestLimits(body_bytes=1_000, array_bytes=1_000, stream_bytes=1_000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b'"' + b"x" * 100 + b'"\n'

    async with asking(limits=limits) as api:
        check(await api.post(MESSAGES, json={"body": "x" * 1_000}), 413, "body")
        endless = {"content-length": "9" * 5_000, "content-type": "application/json"}
        check(await api.post(MESSAGES, content=b"{}", headers=endless), 413, "body")
        headers = {"content-type": "application/json"}
        check(await api.post(MESSAGES, content=chunks(), headers=headers), 413, "body")
        check(await api.post("/v1/bulk/tag", json=["x" * 1_000]), 413, "body")
        lines = {"content-type": "application/x-ndjson"}
        check(await api.post("/v1/bulk/tag", content=chunks(), headers=lines), 413, "body")
    check(await _too_large_for_a_row(asking), 400, "body")


async def _too_large_for_a_row(asking: Asker) -> Response:
    async with asking() as api:
        return await api.post(MESSAGES, json={"body": "x" * 400_000})


async def test_more_requests_than_there_is_room_for(
    asking: Asker, hs: Heatsink, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()
    append = hs.log.append

    async def wait(*arguments: Any, **named: Any) -> Any:
        await release.wait()
        return await append(*arguments, **named)

    monkeypatch.setattr(hs.log, "append", wait)
    async with asking(limits=RequestLimits(requests=2)) as api:
        waiting = [asyncio.ensure_future(api.post(MESSAGES, json={"body": "x"})) for _ in range(2)]
        await asyncio.sleep(0.1)
        refused = await api.get("/v1/heat")
        check(refused, 503)
        assert refused.headers["retry-after"] == "1"
        assert (await api.get("/healthz")).status_code == 200, "busy is not ill"
        release.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [201, 201]
        assert (await api.get("/v1/heat")).status_code == 200


async def test_a_call_that_takes_too_long(
    asking: Asker, hs: Heatsink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(hs.log, "append", wait)
    async with asking(limits=RequestLimits(request_s=0.1)) as api:
        problem = check(await api.post(MESSAGES, json={"body": "x"}), 503)
        assert "retry with the same id" in problem["detail"]


async def test_a_client_that_sends_nothing_more(asking: Asker) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'"one"\n'
        await asyncio.sleep(60)

    headers = {"content-type": "application/x-ndjson"}
    async with asking(limits=RequestLimits(idle_s=0.1)) as api:
        check(await api.post("/v1/bulk/tag", content=chunks(), headers=headers), 408)
        (batch,) = (await api.get("/v1/bulk")).json()["batches"]
        assert batch["state"] == "aborted"


# -- who may ---------------------------------------------------------------------------------


async def test_scopes(asking: Asker) -> None:
    async with asking(tokens=TOKENS) as api:
        pin = {"buckets": 2, "reason": "x"}

        async def statuses(authorization: str | None) -> list[int]:
            headers = {} if authorization is None else {"authorization": authorization}
            answers = [
                await api.get("/v1/heat", headers=headers),
                await api.post(MESSAGES, json={"body": "x"}, headers=headers),
                await api.put("/v1/keys/k/pin", json=pin, headers=headers),
                await api.get("/metrics", headers=headers),
            ]
            for answer in answers:
                if answer.status_code >= 400:
                    check(answer, answer.status_code)
            return [answer.status_code for answer in answers]

        for wrong in (None, "", "Bearer wrong", "Bearer ", "Basic reader-1", "reader-1"):
            assert await statuses(wrong) == [401, 401, 401, 401]
        for given, title in (("Bearer wrong-one", "Unknown token"), ("", "A token is needed")):
            refused = await api.get("/v1/heat", headers={"authorization": given})
            assert check(refused, 401)["title"] == title
            assert ("unknown token" in refused.text) is (title == "Unknown token")
        assert await statuses("Bearer reader-1") == [200, 403, 403, 200]
        assert await statuses("bearer writer-1") == [200, 201, 403, 200]
        assert await statuses("Bearer boss-0001") == [200, 201, 200, 200]
        for path in ("/healthz", "/docs", "/openapi.json"):
            assert (await api.get(path)).status_code == 200
        assert (await api.get("/readyz")).status_code in (200, 503)  # a busy machine is not ready
        read = await api.get(MESSAGES, headers={"authorization": "Bearer reader-1"})
        assert read.headers["cache-control"].startswith("private, ")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "169.254.169.254"])
async def test_a_host_that_is_not_ours(api: AsyncClient, host: str) -> None:
    for path in ("/v1/heat", "/healthz", "/docs"):
        check(await api.get(path, headers={"host": host}), 421)


@pytest.mark.parametrize("host", ["localhost:8321", "127.0.0.1", "[::1]:8321", "LOCALHOST"])
async def test_a_host_that_is(api: AsyncClient, host: str) -> None:
    assert (await api.get("/healthz", headers={"host": host})).status_code == 200


async def test_a_proxy_may_have_a_name(asking: Asker) -> None:
    async with asking(allow_hosts=("API.example.org",)) as api:
        headers = {"host": "api.example.org"}
        assert (await api.get("/healthz", headers=headers)).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000"])
async def test_a_page_of_another_origin(api: AsyncClient, origin: str) -> None:
    answer = await api.post(MESSAGES, json={"body": "x"}, headers={"origin": origin})
    check(answer, 403)
    ours = await api.post(MESSAGES, json={"body": "x"}, headers={"origin": "http://localhost"})
    assert ours.status_code == 201


def test_beyond_this_machine_a_token_is_needed(tmp_path: Any) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1"):  # noqa: S104
        with pytest.raises(InvalidSetting, match="--token"):
            ServeSettings(data=tmp_path, host=host)
        assert ServeSettings(data=tmp_path, host=host, tokens=TOKENS).endpoint.guard._hosts is None


@pytest.mark.parametrize("text", ["secret12", "read:", "root:secret12", "read:short", "read:a b\n"])
def test_a_token_names_its_scope(text: str) -> None:
    with pytest.raises(InvalidSetting, match="token must"):
        parse_token(text)


async def test_operators_calls_are_audited(asking: Asker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "heatsink.audit")
    async with asking(tokens=TOKENS) as api:
        boss = {"authorization": "Bearer boss-0001"}
        pin = {"buckets": 2, "reason": "x"}
        await api.put("/v1/keys/k/pin", json=pin, headers=boss)
        await api.put("/v1/keys/k/pin", json=pin)
        await api.post(MESSAGES, json={"body": "x"}, headers=boss)
    lines = [vars(record)["fields"] for record in caplog.records]
    assert [(line["what"], line["status"]) for line in lines] == [
        ("PUT /v1/keys/k/pin", 200),
        ("PUT /v1/keys/k/pin", 401),
    ]
    assert lines[0]["who"] == TOKENS[2].name
    assert lines[1]["who"] == "nobody"
    assert "boss-0001" not in caplog.text


async def test_a_wrong_field_is_answered_in_words(api: AsyncClient) -> None:
    told = check(await api.get(f"{MESSAGES}?limit=many"), 400, "limit")
    assert told["detail"] == "limit must be a whole number, not text"
    told = check(await api.get(f"{MESSAGES}?order=up"), 400, "order")
    assert told["detail"] == "order must be one of newest, oldest, not 'up'"
    told = check(await api.get(f"{MESSAGES}?limitt=5"), 400, "limitt")
    assert told["detail"] == "there is no field 'limitt': did you mean 'limit'?"
    told = check(await api.post(MESSAGES, json={"body": "x", "text": "hey"}), 400, "text")
    assert "there is no field 'text'" in told["detail"]
