"""What axe-core finds on a page that hinders people with a keyboard or a screen reader."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page

OPTIONS: dict[str, Any] = {
    "resultTypes": ["violations"],
    "rules": {"label-content-name-mismatch": {"enabled": True}},  # off unless it is asked for
}


def violations(page: Page) -> list[str]:
    """One line for each element and rule, with what to do."""
    found = Axe().run(page, options=OPTIONS).response["violations"]
    return [
        f"{rule['id']} ({rule['help']}): {node['html'][:200]}"
        for rule in found
        for node in rule["nodes"]
    ]
