"""The built-in action that posts a batch's outcome to a URL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from heatsink.bulk.actions import WEBHOOK, Action, Fail, Retry
from heatsink.primitives.allowed_urls import allowed_url, check_prefixes
from heatsink.primitives.checks import shown, shown_url

TIMEOUT_S = 10.0


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: an allowed URL must not lead to a URL that is not allowed."""

    def redirect_request(self, *_: Any) -> None:
        return None


def webhook_action(allowed: Sequence[str]) -> Action:
    """Return the built-in action that posts a batch's outcome to a URL.

    `allowed` are the URL prefixes that this worker may call.
    """
    return Action(WEBHOOK, _handler(allowed), max_attempts=10, is_async=False)


def _handler(allowed: Sequence[str]) -> Callable[[dict[str, Any], Any], None]:
    prefixes = check_prefixes("webhooks", allowed)

    def call(item: dict[str, Any], context: Any) -> None:
        url = allowed_url(item["url"], prefixes)
        if url is None:
            refused = shown(shown_url(str(item["url"])))
            raise Fail(f"the webhook {refused} is not in the worker's Actions(webhooks=[…])")
        outcome = {name: value for name, value in item.items() if name != "url"}
        _post(url, msgspec.json.encode(outcome), context.idempotency_key)

    return call


def _post(url: str, body: bytes, key: str) -> None:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    request = Request(url, body, headers, method="POST")  # noqa: S310 (the prefix was checked)
    try:
        with build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S):
            return
    except HTTPError as refusal:
        raise Retry(reason=f"the webhook answered {refusal.code}") from None
    except (OSError, HTTPException) as error:
        raise Retry(reason=f"the webhook did not answer ({error})") from None
