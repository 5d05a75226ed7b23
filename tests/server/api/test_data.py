"""Conversations, counters and timelines over HTTP."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import httpx
import pytest
from httpx import AsyncClient

from heatsink import Heatsink, Snowflake, Ulid, connect
from heatsink.bulk import Actions
from tests.spread.test_log import losing_the_first_answer
from tests.waiting import soon

MESSAGES = "/v1/conversations/conv/messages"


async def test_a_message_comes_back(api: AsyncClient) -> None:
    made = await api.post(MESSAGES, json={"body": "hey"})
    assert made.status_code == 201
    page = (await api.get(MESSAGES)).json()
    assert page == {"messages": [{**made.json(), "body": "hey"}], "cursor": None}
    one = await api.get(f"{MESSAGES}/{made.json()['id']}")
    assert one.json() == {**made.json(), "body": "hey"}
    time = datetime.fromisoformat(made.json()["time"])
    assert abs(time - datetime.now(UTC)) < timedelta(seconds=30)


async def test_the_same_id_is_the_same_message(api: AsyncClient) -> None:
    id = (await api.post(MESSAGES, json={"body": "hey"})).json()["id"]
    again = await api.post(MESSAGES, json={"body": "hey", "id": id})
    assert (again.status_code, again.json()["id"]) == (200, id)
    other = await api.post(MESSAGES, json={"body": "ho", "id": id})
    assert other.status_code == 409
    assert other.json()["title"] == "Conflict"
    assert len((await api.get(MESSAGES)).json()["messages"]) == 1


async def test_a_deleted_id_stays_deleted(api: AsyncClient, hs: Heatsink) -> None:
    id = (await api.post(MESSAGES, json={"body": "hey"})).json()["id"]
    await hs.log.delete("conv", hs.log.scheme.from_text(id))
    again = await api.post(MESSAGES, json={"body": "hey", "id": id})
    assert (again.status_code, again.json()["title"]) == (409, "Deleted")
    assert (await api.get(f"{MESSAGES}/{id}")).status_code == 404


async def test_any_text_of_the_caller_makes_a_retry_safe(api: AsyncClient) -> None:
    retry = {"Idempotency-Key": "order-17"}
    first = await api.post(MESSAGES, json={"body": "hey"}, headers=retry)
    again = await api.post(MESSAGES, json={"body": "hey"}, headers=retry)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = await api.post(MESSAGES, json={"body": "ho"}, headers=retry)
    assert (other.status_code, other.json()["title"]) == (409, "Conflict")
    elsewhere = MESSAGES.replace("conv/", "conv2/")
    assert (await api.post(elsewhere, json={"body": "hey"}, headers=retry)).status_code == 201
    assert len((await api.get(MESSAGES)).json()["messages"]) == 1


async def test_a_retry_key_is_checked(api: AsyncClient) -> None:
    id = (await api.post(MESSAGES, json={"body": "hey"})).json()["id"]
    both = await api.post(
        MESSAGES, json={"body": "hey", "id": id}, headers={"Idempotency-Key": "a"}
    )
    assert (both.status_code, both.json()["field"]) == (400, "Idempotency-Key")
    long = await api.post(MESSAGES, json={"body": "a"}, headers={"Idempotency-Key": "a" * 257})
    assert "1 to 256 printable characters" in long.json()["detail"]
    broken = await api.post(MESSAGES, json={"body": "a"}, headers={b"idempotency-key": b"\xff"})
    assert (broken.status_code, broken.json()["field"]) == (400, "Idempotency-Key")


async def test_a_retry_key_is_any_text(api: AsyncClient) -> None:
    retry = {b"idempotency-key": "order 7, Zoë".encode()}
    statuses = [
        (await api.post(MESSAGES, json={"body": "hey"}, headers=retry)).status_code
        for _ in range(2)
    ]
    assert statuses == [201, 200]


async def test_a_message_is_deleted_once_and_a_conversation_erased(api: AsyncClient) -> None:
    ids = [(await api.post(MESSAGES, json={"body": str(n)})).json()["id"] for n in range(3)]
    assert (await api.delete(f"{MESSAGES}/{ids[0]}")).json() == {"deleted": True}
    assert (await api.delete(f"{MESSAGES}/{ids[0]}")).json() == {"deleted": False}
    assert (await api.get(f"{MESSAGES}/{ids[0]}")).status_code == 404
    assert (await api.delete(MESSAGES)).json() == {"erased": 3}
    assert (await api.get(MESSAGES)).json()["messages"] == []


async def test_a_message_may_expire(api: AsyncClient) -> None:
    made = await api.post(MESSAGES, json={"body": "gone", "ttl": 0.001})
    path = f"{MESSAGES}/{made.json()['id']}"
    await soon(lambda: _is_gone(api, path))
    wrong = await api.post(MESSAGES, json={"body": "gone", "ttl": -1})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "ttl")


async def _is_gone(api: AsyncClient, path: str) -> bool:
    return (await api.get(path)).status_code == 404


async def test_bytes_travel_as_base64(api: AsyncClient) -> None:
    data = b"\xff\x00\xfe"
    body = {"base64": base64.b64encode(data).decode()}
    await api.post(MESSAGES, json={"body": body})
    await api.post(MESSAGES, json={"body": {"base64": base64.b64encode("é".encode()).decode()}})
    text, raw = (await api.get(MESSAGES)).json()["messages"]
    assert raw["body"] == body
    assert text["body"] == "é"


async def test_pages_follow_one_another(api: AsyncClient) -> None:
    sent = [(await api.post(MESSAGES, json={"body": str(n)})).json()["id"] for n in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await api.get(MESSAGES, params=query)).json()
        seen += [message["id"] for message in page["messages"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == sent[::-1]
    oldest = await api.get(MESSAGES, params={"order": "oldest", "after": sent[1]})
    assert [message["id"] for message in oldest.json()["messages"]] == sent[2:]
    past = await api.get(MESSAGES, params={"before": "2020-01-01T00:00:00Z"})
    assert past.json()["messages"] == []


async def test_a_page_of_large_messages_is_a_short_one(api: AsyncClient, hs: Heatsink) -> None:
    for _ in range(130):
        await hs.log.append("conv", b"x" * 45_000)
    first = (await api.get(MESSAGES, params={"limit": "1000"})).json()
    assert len(first["messages"]) == 100
    rest = await api.get(MESSAGES, params={"limit": "1000", "cursor": first["cursor"]})
    assert (len(rest.json()["messages"]), rest.json()["cursor"]) == (30, None)


@pytest.mark.parametrize(
    "key",
    ["a/b", "a#0", "%", "100%25", "ключ", "a b", "🔥" * 50, "?x=1", "a&b", "'; drop", "\n"],
)
async def test_any_key_is_a_key_of_its_own(api: AsyncClient, hs: Heatsink, key: str) -> None:
    path = f"/v1/conversations/{quote(key, safe='')}/messages"
    assert (await api.post(path, json={"body": key})).status_code == 201
    assert (await api.get(path)).json()["messages"][0]["body"] == key
    assert [entry.body.decode() for entry in (await hs.log.page(key)).entries] == [key]


@pytest.mark.parametrize("key", ["", "%00", "x" * 2_000, "%ff"])
async def test_what_is_no_key_is_refused(api: AsyncClient, key: str) -> None:
    for answer in (
        await api.post(f"/v1/conversations/{key}/messages", json={"body": "x"}),
        await api.post(f"/v1/counters/{key}", json={}),
    ):
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("scheme", [Ulid(), Snowflake()])
async def test_ids_are_of_the_deployments_kind(scheme: Ulid | Snowflake, tmp_path: object) -> None:
    from heatsink.primitives.clock import SystemClock
    from heatsink.server.process import ServeSettings, running_app

    settings = ServeSettings(data=tmp_path)  # type: ignore[arg-type]
    async with (
        connect("memory://", ids=scheme) as hs,
        running_app(hs, settings, SystemClock()) as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client,
    ):
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        mine = str(scheme.value(scheme.first_raw(now_ms - 1_000)))
        made = await client.post(MESSAGES, json={"body": "x", "id": mine})
        assert (made.status_code, made.json()["id"]) == (201, mine)
        assert (await client.get(f"{MESSAGES}/{mine}")).json()["body"] == "x"
        wrong = await client.post(MESSAGES, json={"body": "x", "id": "not-an-id"})
        assert (wrong.status_code, wrong.json()["field"]) == (400, "id")


async def test_a_message_without_an_id_is_created_also_after_a_lost_answer(
    api: AsyncClient,
) -> None:
    with losing_the_first_answer():
        made = await api.post(MESSAGES, json={"body": "x"})
        again = await api.post(MESSAGES, json={"body": "x", "id": made.json()["id"]})
    assert (made.status_code, again.status_code) == (201, 200)
    assert len((await api.get(MESSAGES)).json()["messages"]) == 1


async def test_a_counter_counts_once_per_token(api: AsyncClient) -> None:
    token = (await api.post(MESSAGES, json={"body": "x"})).json()["id"]
    for _ in range(3):
        answer = await api.post("/v1/counters/c", json={"amount": 5, "token": token})
        assert (answer.status_code, answer.json()) == (200, {})
    other = await api.post("/v1/counters/c", json={"amount": 6, "token": token})
    assert other.status_code == 409
    assert (await api.post("/v1/counters/c", json={"value": True})).json() == {"value": 6}
    assert (await api.get("/v1/counters/c")).json() == {"value": 6}


async def test_an_add_past_the_bound_is_refused_by_its_field_and_the_rest_is_readable(
    api: AsyncClient, hs: Heatsink
) -> None:
    await asyncio.gather(*(hs.counters.add("c", 2**53) for _ in range(2**10 - 1)))
    refused = await api.post("/v1/counters/c", json={"amount": 2**53})
    assert (refused.status_code, refused.json()["field"]) == (400, "amount")
    async with hs.counters.buffered() as counts:
        for _ in range(3):
            await counts.add("c", 2**53)
    assert (await api.get("/v1/counters/c")).json() == {"value": 2**63 + 2**53 * 2}


async def test_a_token_that_is_too_old_is_gone(api: AsyncClient) -> None:
    old = "01700000-0000-7000-8000-000000000000"
    answer = await api.post("/v1/counters/c", json={"token": old})
    assert (answer.status_code, answer.json()["title"]) == (410, "Token expired")


async def test_a_post_comes_home(api: AsyncClient, hs: Heatsink) -> None:
    worker = hs.worker(Actions())
    running = asyncio.ensure_future(worker.run())
    try:
        first = await api.post("/v1/timelines/ann/follows", json={"author": "bob"})
        again = await api.post("/v1/timelines/ann/follows", json={"author": "bob"})
        assert (first.status_code, again.status_code) == (201, 200)
        post = await api.post("/v1/timelines/bob/posts", json={"body": "hi"})
        assert post.status_code == 201
        await hs.bulk.wait(post.json()["batch"], timeout_s=20)
        posts = (await api.get("/v1/timelines/ann/home")).json()["posts"]
        assert [(each["author"], each["body"]) for each in posts] == [("bob", "hi")]
        await api.post("/v1/timelines/ann/follows", json={"author": "bob", "follows": False})
        assert (await api.get("/v1/timelines/ann/home")).json()["posts"] == []
    finally:
        worker.stop()
        await running


async def test_posts_of_two_authors_with_one_id_are_both_shown_page_by_page(
    api: AsyncClient, hs: Heatsink
) -> None:
    worker = hs.worker(Actions())
    running = asyncio.ensure_future(worker.run())
    try:
        id = None
        for author in ("bob", "cyd"):
            await api.post("/v1/timelines/ann/follows", json={"author": author})
            new = {"body": author} if id is None else {"body": author, "id": id}
            post = (await api.post(f"/v1/timelines/{author}/posts", json=new)).json()
            id = post["id"]
            await hs.bulk.wait(post["batch"], timeout_s=20)
        home, found = "/v1/timelines/ann/home", []
        page = (await api.get(home, params={"limit": 1})).json()
        while True:
            found += [post["author"] for post in page["posts"]]
            if page["cursor"] is None:
                break
            page = (await api.get(home, params={"limit": 1, "cursor": page["cursor"]})).json()
        assert found == ["cyd", "bob"]
    finally:
        worker.stop()
        await running


async def test_many_follow_with_one_call(api: AsyncClient, hs: Heatsink) -> None:
    pairs = [[f"fan-{n % 400}", f"author-{n // 400}"] for n in range(1_000)]
    made = await api.post("/v1/follows", json={"pairs": pairs})
    assert (made.status_code, made.json()) == (201, {"new": 1_000})
    again = await api.post("/v1/follows", json={"pairs": pairs[:3]})
    assert (again.status_code, again.json()) == (200, {"new": 0})
    assert await hs.timelines.followers("author-0") == 400
    assert await hs.timelines.following("fan-7") == ["author-0", "author-1", "author-2"]


# -- caches ----------------------------------------------------------------------------------


async def test_reads_may_be_kept_for_a_moment(api: AsyncClient) -> None:
    await api.post(MESSAGES, json={"body": "hey"})
    read = await api.get(MESSAGES)
    assert read.headers["cache-control"] == "public, max-age=1, stale-while-revalidate=5"
    same = await api.get(MESSAGES, headers={"if-none-match": read.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    await api.post(MESSAGES, json={"body": "ho"})
    changed = await api.get(MESSAGES, headers={"if-none-match": read.headers["etag"]})
    assert changed.status_code == 200


async def test_a_page_may_be_a_little_old_if_the_reader_says_so(
    api: AsyncClient, hs: Heatsink
) -> None:
    await api.post(MESSAGES, json={"body": "hey"})
    answers = [await api.get(MESSAGES, params={"fresh_for": "30"}) for _ in range(5)]
    assert len({answer.text for answer in answers}) == 1
    assert hs.page_stats().loads == 1
    await api.post(MESSAGES, json={"body": "ho"})
    seen = (await api.get(MESSAGES, params={"fresh_for": "30"})).json()["messages"]
    assert [message["body"] for message in seen] == ["ho", "hey"], "never past an own write"


async def test_what_operators_read_is_always_asked_for(api: AsyncClient) -> None:
    assert (await api.get("/v1/heat")).headers["cache-control"] == "no-cache"
