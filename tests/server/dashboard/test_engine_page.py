"""The engine's own page: partitions, their heat and what was done, in a real browser."""

from __future__ import annotations

from typing import Literal

import pytest
from click.testing import CliRunner
from mypy_boto3_dynamodb import DynamoDBClient
from playwright.sync_api import Page, expect

from heatsink.cli import main
from heatsink.emulator.settings import EngineSettings
from tests.emulator.contract.conftest import client_of
from tests.emulator.contract.engines import ours

from .conftest import Visit

BUSY = EngineSettings(port=0, write_limit=5, partitions=2, split_after_s=1.0, cool_down_s=0.0)


def create(client: DynamoDBClient, table: str, kind: Literal["S", "B"]) -> None:
    client.create_table(
        TableName=table,
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": kind}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )


@pytest.mark.full("one browser run of the engine's page is enough in plain runs")
def test_a_long_key_is_shown_by_its_beginning(visit: Visit) -> None:
    with ours(BUSY) as url:
        page, client = visit(url), client_of(url)
        create(client, "bytes", "B")
        short = page.get_by_text(f"{'ab' * 20}… (100%)", exact=True)
        for _ in range(100):
            client.put_item(TableName="bytes", Item={"pk": {"B": b"\xab" * 600}})
            page.wait_for_timeout(300)
            if short.is_visible():
                break
        expect(short).to_have_attribute("title", "ab" * 600)
        command = ["dynamo", "--port", url.rsplit(":", 1)[1], "--partitions"]
        told = "".join(CliRunner().invoke(main, command).output.split())
        assert "refused/shottest" in told
        assert f"{'ab' * 20}…100%" in told
        client.close()


def assert_numbers_are_beside_the_colours(page: Page) -> None:
    """A number on red or blue cannot be read."""
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll(".space.numbered > div")].map((part) =>
            part.querySelector("span").getBoundingClientRect().bottom
            - part.querySelector("i").getBoundingClientRect().top)"""
    )
    assert overlaps
    assert max(overlaps) <= 1


@pytest.mark.full("one browser run of the engine's page is enough in plain runs")
def test_what_is_scrolled_or_focused_stays_so_while_the_figures_change(visit: Visit) -> None:
    with ours(BUSY) as url:
        page, client = visit(url, viewport={"width": 390, "height": 844}), client_of(url)
        create(client, "chat", "S")
        rows = page.get_by_role("group", name="Partitions of table chat")
        rows.evaluate("element => { element.focus(); element.scrollLeft = 60; }")
        client.put_item(TableName="chat", Item={"pk": {"S": "one"}})
        expect(rows.get_by_role("cell", name="1", exact=True).nth(1)).to_be_attached()
        expect(rows).to_be_focused()
        assert rows.evaluate("element => element.scrollLeft") == 60
        client.close()


def test_the_page_shows_a_hot_partition_and_what_the_engine_does_about_it(visit: Visit) -> None:
    with ours(BUSY) as url:
        page = visit(url)
        expect(page.get_by_text("No table yet")).to_be_visible()
        client = client_of(url)
        create(client, "chat", "S")
        expect(page.get_by_text("2 partitions, map version 1, throttled: none")).to_be_visible()
        cannot = page.get_by_text("it holds one key, and a key is never split").first
        for number in range(400):
            try:
                client.put_item(TableName="chat", Item={"pk": {"S": "<i>hot"}})
            except client.exceptions.ClientError:
                page.wait_for_timeout(50)
            if number % 20 == 19 and cannot.is_visible():
                break
        expect(cannot).to_be_visible()
        expect(page.get_by_text("<i>hot (100%)").first).to_be_visible()
        expect(
            page.get_by_text("In the order of key hashes, as in the bar, not by number.")
        ).to_be_visible()
        expect(page.get_by_text("The same event in two measures.")).to_be_visible()
        assert_numbers_are_beside_the_colours(page)
        expect(page.get_by_text("isolate done")).to_be_visible()
        expect(page.locator(".space > div")).to_have_count(4)
        client.close()
