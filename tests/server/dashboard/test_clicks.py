"""What an operator does on the dashboard, by real clicks and keys on a running server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from heatsink.stores.embedded import free_port
from tests.processes import serving
from tests.waiting import until

from .conftest import SHOTS, Site, Visit
from .test_screenshots import PAGES
from .traffic import PULLED, WARM, submit

TOKEN = "a-long-enough-word"  # noqa: S105
EMPTY = ("--store", "memory://")
pytestmark = pytest.mark.timeout(180)


def row_of(page: Page, batch: str) -> Locator:
    return page.locator("tr", has=page.locator(f"[title='{batch}']"))


def test_a_key_is_pinned_with_a_reason_and_unpinned(site: Site, visit: Visit) -> None:
    page = visit(f"{site.url}/keys")
    page.get_by_role("button", name=WARM).click()
    chosen = page.get_by_role("region", name="The chosen key")
    chosen.get_by_label("Buckets", exact=True).fill("3")
    chosen.get_by_label("Reason").fill("launch at noon")
    chosen.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_text(f"{WARM} is pinned to 3 buckets")).to_be_visible()
    expect(chosen.get_by_text("pinned to 3: launch at noon")).to_be_visible()
    chosen.get_by_role("button", name="Unpin").click()
    expect(chosen.get_by_text("decided by load")).to_be_visible()
    expect(chosen.get_by_role("button", name="Unpin")).to_be_hidden()


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_a_batch_is_paused_resumed_and_cancelled(site: Site, visit: Visit) -> None:
    batch = submit(site.url, "resize", "clicks", 5_000)
    page = visit(f"{site.url}/bulk")
    row = row_of(page, batch)
    row.get_by_role("button", name="Pause").click()
    expect(row.locator(".state")).to_have_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row.locator(".state")).to_have_text("running")
    row.get_by_role("button", name="Cancel").click()
    expect(row.locator(".state")).to_have_text("running")  # it asks first
    row.get_by_role("button", name="Really cancel?").click()
    expect(row.locator(".state")).to_have_text("cancelled")


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_a_schedule_is_set_paused_and_removed(site: Site, visit: Visit) -> None:
    page = visit(f"{site.url}/bulk")
    page.get_by_text("Set a schedule").click()
    for label, text in (("Schedule", "nightly"), ("Action", "resize"), ("Cron", "0 2 * * *")):
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_role("button", name="Set", exact=True).click()
    row = page.get_by_role("row").filter(has_text="0 2 * * * Europe/Berlin")
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused")).to_be_visible()
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_role("button", name="Pause")).to_be_visible()
    row.get_by_role("button", name="Remove").click()
    row.get_by_role("button", name="Really remove?").click()
    expect(row).to_have_count(0)


def test_an_edited_schedule_keeps_what_was_not_changed(site: Site, visit: Visit) -> None:
    at = f"{site.url}/v1/schedules/edited"
    order = {
        "action": "resize",
        "every": 86_400,
        "items": [{"days": 30, "name": 'a "b" 1234567890123456'}],
        "missed": "once",
        "tenant": "acme",
        "priority": -3,
        "rate": "5/s",
    }
    assert httpx.put(at, json=order).is_success
    assert httpx.post(f"{at}/pause").is_success
    page = visit(f"{site.url}/bulk")
    page.get_by_text("Set a schedule").click()
    page.get_by_label("Schedule", exact=True).fill("edited")
    page.get_by_label("Action", exact=True).fill("other")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_text("there is a schedule edited")).to_be_visible()
    expect(page.get_by_label("Action", exact=True)).to_have_value("resize")
    expect(page.get_by_label("Items (a JSON array)")).to_have_value(json_text(order["items"]))
    page.get_by_label("Every (seconds)").fill("43200")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_text("edited is set.")).to_be_visible()
    found = httpx.get(at).json()
    assert {name: found[name] for name in ("missed", "tenant", "priority", "rate")} == {
        name: order[name] for name in ("missed", "tenant", "priority", "rate")
    }
    assert (found["item_values"], found["every_s"], found["cron"]) == (order["items"], 43_200, "")
    assert found["paused"]
    row = page.get_by_role("row").filter(has_text="edited")
    row.get_by_role("button", name="Edit").click()
    expect(page.get_by_text("The form shows edited.")).to_be_visible()
    expect(page.get_by_label("Items (a JSON array)")).to_have_value(json_text(order["items"]))
    page.get_by_label("Items (a JSON array)").fill("[12345678901234567]")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_text("a browser would round")).to_be_visible()
    row.get_by_role("button", name="Remove").click()
    row.get_by_role("button", name="Really remove?").click()
    expect(row).to_have_count(0)


def test_nothing_is_typed_into_a_schedule_that_is_still_loading(site: Site, visit: Visit) -> None:
    at = f"{site.url}/v1/schedules/slow"
    assert httpx.put(at, json={"action": "resize", "every": 86_400, "items": [1]}).is_success
    page = visit(f"{site.url}/bulk")
    held: list[Route] = []
    page.route("**/v1/schedules/slow", lambda route: held.append(route))

    def asked() -> int:
        page.title()  # lets the browser tell what it has asked for
        return len(held)

    page.get_by_text("Set a schedule").click()
    row = page.get_by_role("row").filter(has_text="slow")
    every = page.get_by_label("Every (seconds)")
    expect(every).to_be_enabled()
    row.get_by_role("button", name="Edit").click()
    expect(page.get_by_text("Loading slow")).to_be_visible()
    expect(every).to_be_disabled()
    row.get_by_role("button", name="Edit").click()
    expect(page.get_by_text("the form still waits for the server")).to_be_visible()
    until(lambda: asked() == 1)
    held[0].continue_()
    every.fill("600")  # waits until the form takes it
    expect(page.get_by_label("Action", exact=True)).to_have_value("resize")
    expect(every).to_have_value("600")
    row.get_by_role("button", name="Edit").click()
    expect(every).to_be_disabled()
    until(lambda: asked() == 2)
    held[1].fulfill(body="not JSON")
    expect(page.get_by_text("Failed: ")).to_be_visible()
    expect(every).to_be_enabled()
    assert httpx.delete(at).is_success


def test_a_change_whose_answer_is_lost_is_said_to_be_unknown(site: Site, visit: Visit) -> None:
    at = f"{site.url}/v1/schedules/lost"
    page = visit(f"{site.url}/bulk", allow=True)

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route(
        "**/v1/schedules/lost", lambda route: lose(route) if is_put(route) else route.continue_()
    )
    page.get_by_text("Set a schedule").click()
    page.get_by_label("Schedule", exact=True).fill("lost")
    page.get_by_label("Action", exact=True).fill("resize")
    page.get_by_label("Items (a JSON array)").fill("[1]")
    page.get_by_label("Every (seconds)").fill("86400")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_text("it is not known whether this was done")).to_be_visible()
    expect(page.get_by_text("Failed: ")).to_have_count(0)
    assert httpx.delete(at).is_success, "it was done"


def is_put(route: Route) -> bool:
    return route.request.method == "PUT"


def json_text(value: object) -> str:
    """JSON as a browser writes it."""
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_a_tenant_is_paused_and_resumed(site: Site, visit: Visit) -> None:
    batch = submit(site.url, "resize", "paused-tenant", 5_000)
    page = visit(f"{site.url}/bulk")
    page.get_by_text("Pause or resume a tenant or an action").click()
    form = page.locator("form", has=page.get_by_label("Tenant or action"))
    form.get_by_label("Name").fill("paused-tenant")
    form.get_by_label("Reason").fill("their API is down")
    form.get_by_role("button", name="Pause").click()
    row = page.get_by_role("row").filter(has_text="tenant paused-tenant")
    expect(row.get_by_text("their API is down")).to_be_visible()
    expect(row.get_by_text("paused", exact=True)).to_be_visible()
    expect(row_of(page, batch).get_by_text("the tenant 'paused-tenant' is paused")).to_be_visible()
    expect(page.get_by_text(re.compile(r"items, and [\d,]+ that are paused"))).to_be_visible()
    form.get_by_role("button", name="Resume").click()
    expect(row.get_by_text("runs", exact=True)).to_be_visible()
    expect(row.get_by_role("button", name="Unset")).to_be_visible()
    form.get_by_role("button", name="Pause").click()
    row.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("tenant paused-tenant: back to normal.")).to_be_visible()
    expect(row).to_have_count(0)
    row_of(page, batch).get_by_role("button", name="Cancel").click()
    row_of(page, batch).get_by_role("button", name="Really cancel?").click()


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_failures_are_shown_and_tried_again(site: Site, visit: Visit) -> None:
    page = visit(f"{site.url}/bulk")
    row = row_of(page, site.mail)
    expect(row).to_be_hidden()  # finished batches are folded
    page.get_by_text(re.compile(r"\d+ finished batch.* with failed or lost items")).click()
    row.get_by_role("button", name="Failures").click()
    shown = page.get_by_role("region", name="Failures")
    expect(shown.get_by_text(re.compile("no mailbox 57"))).to_be_visible()
    shown.get_by_role("button", name="Close").click()
    expect(shown).to_be_hidden()
    row.get_by_role("button", name="Retry failed").click()
    expect(page.get_by_text("Failed items run again.")).to_be_visible()


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_what_is_not_known_yet_is_said_in_words(site: Site, visit: Visit) -> None:
    """No chart has axes, no table is empty and no figure is zero before the server has answered."""
    page = visit(f"{site.url}/docs")
    page.route("**/v1/**", lambda _: None)  # a server that takes its time
    for path in PAGES.values():
        page.goto(f"{site.url}{path}")
        expect(page.locator("h1")).to_be_visible()
        expect(page.get_by_text("Loading: ").first).to_be_visible()
        expect(page.locator(".main-svg")).to_have_count(0)
        shown = page.locator("main").inner_text()
        assert not re.search(r"^No |^0$|not been used|are idle", shown, re.MULTILINE), shown


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_charts_are_not_blank_while_their_script_is_fetched(site: Site, visit: Visit) -> None:
    page = visit(f"{site.url}/docs")
    held: list[Route] = []
    page.route("**/plotly.min.js", lambda route: held.append(route))
    page.goto(site.url)
    expect(page.get_by_text("Loading: the script that draws charts…")).to_have_count(2)
    held[0].continue_()
    expect(page.locator(".chart:visible .main-svg").first).to_be_visible()
    expect(page.get_by_text("Loading: ").filter(visible=True)).to_have_count(0)


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_charts_come_first_and_finished_batches_are_folded(site: Site, visit: Visit) -> None:
    page = visit(f"{site.url}/bulk")
    expect(page.get_by_text(re.compile(r"\d+ finished batch"))).to_be_visible()
    titles = page.locator("h2:visible").all_inner_texts()
    assert titles[:3] == ["The queue now", "Waiting in each partition", "Workers in each partition"]


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_decisions_can_be_searched(site: Site, visit: Visit) -> None:
    page = visit(f"{site.url}/registry")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.get_by_label("Search decisions").fill(f"{PULLED} followers")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").first).to_contain_text(f"author {PULLED}")
    page.get_by_label("Search decisions").fill("no such thing")
    expect(page.get_by_text("No loaded decision matches")).to_be_visible()


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_tabs_are_reached_by_keyboard_and_have_urls(site: Site, visit: Visit) -> None:
    page = visit(site.url)
    page.locator(".brand").focus()
    for name in ("Overview", "Keys", "Bulk"):
        page.keyboard.press("Tab")
        focused = page.locator("nav a:focus-visible")
        expect(focused).to_have_text(name)
        page.keyboard.press("Enter")
        expect(page.locator("nav a[aria-current=page]")).to_have_text(name)
    expect(page).to_have_url(f"{site.url}/bulk")
    page.go_back()
    expect(page).to_have_title("Keys · Heatsink")


@pytest.mark.full("one browser run of each page is enough in plain runs")
def test_an_empty_page_says_what_to_do_and_comes_back_by_itself(
    tmp_path: Path, visit: Visit
) -> None:
    port = str(free_port())  # which nobody is given while it is free for a moment
    with serving(tmp_path, *EMPTY, "--port", port) as served:
        page = visit(f"{served.url}/bulk", allow=True)
        expect(page.get_by_text("No batches yet. Submit one:")).to_be_visible()
        expect(page.get_by_text(f"items.jsonl --server {served.url}")).to_be_visible()
        page.screenshot(path=SHOTS / "empty.png")
        row = row_of(page, submit(served.url, "tag", "shop", 3))
        expect(row).to_contain_text("waiting: no worker has action 'tag'")
        page.screenshot(path=SHOTS / "no-worker.png")
    expect(page.get_by_role("alert")).to_contain_text("Disconnected")
    page.screenshot(path=SHOTS / "disconnected.png")
    with serving(tmp_path, *EMPTY, "--port", port, "--token", f"read:{TOKEN}"):
        box = page.get_by_label("Token", exact=True)
        box.fill(TOKEN)
        page.screenshot(path=SHOTS / "token.png")
        page.get_by_role("button", name="Connect").click()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        expect(page.get_by_role("alert")).to_be_hidden()
        page.get_by_role("link", name="Keys").click()
        page.get_by_label("Any other key").fill("conv_1")
        page.get_by_role("button", name="Explain").click()
        page.get_by_label("Reason").fill("may I?")
        page.get_by_role("button", name="Pin", exact=True).click()
        expect(page.get_by_text("Failed: this call needs the scope admin")).to_be_visible()
