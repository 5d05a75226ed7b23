"""A program that uses the client which openapi-python-client generates for Heatsink's HTTP API."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from http import HTTPStatus

from heatsink_client import AuthenticatedClient
from heatsink_client.api.bulk_actions import get_batch, get_failures, get_results, submit_batch
from heatsink_client.api.conversations import (
    append_message,
    delete_message,
    erase_conversation,
    get_message,
    page_messages,
)
from heatsink_client.api.counters import add_to_counter, get_counter
from heatsink_client.models import (
    Accepted,
    Add,
    Added,
    Appended,
    Base64,
    CounterValue,
    DeletedMessage,
    ErasedConversation,
    GetFailuresFormat,
    Message,
    MessagePage,
    NewMessage,
    Problem,
    Progress,
    SubmitBatchResults,
)

LOOK_S = 0.05
KEY = "conv/python"  # a key may have a slash


def keep_a_log(client: AuthenticatedClient) -> None:
    new = NewMessage("hey", ttl=3_600)
    for status in HTTPStatus.CREATED, HTTPStatus.OK:  # the second one is a retry
        answer = append_message.sync_detailed(KEY, client=client, body=new, idempotency_key="one")
        assert answer.status_code is status
    first = answer.parsed
    assert isinstance(first, Appended)
    assert isinstance(first.time, datetime)
    append_message.sync(KEY, client=client, body=NewMessage(Base64("/w==")))

    page = page_messages.sync(KEY, client=client, limit=1)
    assert isinstance(page, MessagePage)
    assert isinstance(page.cursor, str)
    assert page.messages[0].body == Base64("/w==")
    page = page_messages.sync(KEY, client=client, limit=1, cursor=page.cursor)
    assert isinstance(page, MessagePage)
    assert [(each.id, each.body) for each in page.messages] == [(first.id, "hey")]

    assert isinstance(get_message.sync(KEY, first.id, client=client), Message)
    assert delete_message.sync(KEY, first.id, client=client) == DeletedMessage(deleted=True)
    gone = get_message.sync(KEY, first.id, client=client)
    assert isinstance(gone, Problem)
    assert gone.status == HTTPStatus.NOT_FOUND
    assert isinstance(erase_conversation.sync(KEY, client=client), ErasedConversation)


def count(client: AuthenticatedClient) -> None:
    assert add_to_counter.sync("views", client=client, body=Add(amount=3)) == Added()
    assert get_counter.sync("views", client=client) == CounterValue(value=3)


def run_a_batch(client: AuthenticatedClient) -> None:
    accepted = submit_batch.sync(
        "double",
        client=client,
        body=[{"n": 1}, {"n": 2}, {"n": "odd"}],
        results=SubmitBatchResults.KEEP,
        idempotency_key="python-batch",
    )
    assert isinstance(accepted, Accepted)
    while True:
        progress = get_batch.sync(accepted.id, client=client)
        assert isinstance(progress, Progress)
        if progress.done + progress.failed == progress.accepted:
            break
        time.sleep(LOOK_S)
    assert (progress.done, progress.failed) == (2, 1)
    results = get_results.sync(accepted.id, client=client)
    assert results == '{"index":0,"value":2}\n{"index":1,"value":4}\n'
    failures = get_failures.sync(accepted.id, client=client, format_=GetFailuresFormat.CSV)
    assert isinstance(failures, str)
    assert failures.splitlines()[1].startswith("2,1,")


def see_an_error(client: AuthenticatedClient) -> None:
    problem = page_messages.sync(KEY, client=client, limit=0)
    assert isinstance(problem, Problem)
    assert (problem.status, problem.field) == (HTTPStatus.BAD_REQUEST, "limit")


def main(url: str, token: str) -> None:
    with AuthenticatedClient(base_url=url, token=token) as client:
        keep_a_log(client)
        count(client)
        run_a_batch(client)
        see_an_error(client)


if __name__ == "__main__":
    main(*sys.argv[1:])
