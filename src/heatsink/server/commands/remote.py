"""A client of a running server's HTTP API, with the standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from ssl import SSLCertVerificationError, SSLError
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

import click
import msgspec

from heatsink.errors import HeatsinkError, InvalidInput, InvalidSetting, NotFound, Unavailable
from heatsink.primitives.checks import shown_url

from .configuration import json_option

SERVER = "http://127.0.0.1:8321"
TIMEOUT_S = 35.0
WRONG_COMMAND = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Remote:
    """Sends requests to the HTTP API of one server and raises its errors as `HeatsinkError`."""

    def __init__(self, url: str, token: str | None = None) -> None:
        if not _is_http(url):
            raise InvalidSetting(
                f"server must be a URL like {SERVER}, not {shown_url(url)[:80]!r}", field="server"
            )
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def get(self, *path: str, **query: Any) -> Any:
        """Return the decoded JSON of a GET. The path is in parts, since a key may hold a slash."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", path, f"?{urlencode(given)}" if given else "")

    def put(self, *path: str, body: dict[str, Any]) -> Any:
        return self._ask("PUT", path, "", body)

    def delete(self, *path: str) -> Any:
        return self._ask("DELETE", path, "")

    def events(self, after: int | None = None) -> Iterator[tuple[str, Any]]:
        """Yield the name and the data of each Server-Sent Event, until the stream ends.

        With `after`, the first events are the decisions after that version of the registry.
        """
        headers = {} if after is None else {"last-event-id": str(after)}
        with self._open("GET", "/v1/events", None, headers) as answer:
            name = ""
            for line in answer:
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    yield name, msgspec.json.decode(line[6:])

    def _ask(
        self, method: str, path: tuple[str, ...], query: str, body: dict[str, Any] | None = None
    ) -> Any:
        try:
            where = "/" + "/".join(quote(part, safe="") for part in path) + query
            sent = None if body is None else msgspec.json.encode(body)
            answer = self._open(method, where, sent, {})
        except ValueError:  # its text may contain the token
            raise InvalidSetting(
                "an argument cannot be sent over HTTP: check the key, the reason, --token and "
                "--server for unusual characters"
            ) from None
        with answer:
            return msgspec.json.decode(answer.read())

    def _open(
        self, method: str, where: str, body: bytes | None, headers: dict[str, str]
    ) -> HTTPResponse:
        sent = {**self._headers, **headers, "content-type": "application/json"}
        request = Request(self._url + where, body, sent, method=method)  # noqa: S310 - checked
        try:
            return urlopen(request, timeout=TIMEOUT_S)  # type: ignore[no-any-return]  # noqa: S310
        except HTTPError as error:
            raise _refusal(error, "authorization" in sent) from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, SSLError) and self._url.startswith("https:"):
                raise Unavailable(_no_tls(self._url, reason)) from None
            raise Unavailable(
                f"no server answers at {shown_url(self._url)} ({reason}): start `heatsink serve`, "
                "or name another with --server"
            ) from None


def _is_http(url: str) -> bool:
    """Return whether the URL is http(s) without user and password. A token belongs in --token."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and "@" not in parts.netloc


def _no_tls(url: str, reason: SSLError) -> str:
    if isinstance(reason, SSLCertVerificationError):
        return f"the certificate of {shown_url(url)} is not trusted ({reason.verify_message})"
    plain = "http:" + shown_url(url).removeprefix("https:")
    return f"the server at {shown_url(url)} does not speak TLS: use {plain}"


def _refusal(error: HTTPError, has_token: bool) -> HeatsinkError:
    if error.code == HTTPStatus.UNAUTHORIZED:
        missing = "needs a token: pass --token, or set HEATSINK_TOKEN"
        wrong = "does not accept this token: check --token, or HEATSINK_TOKEN"
        return InvalidInput(f"the server {wrong if has_token else missing}")
    try:
        problem = msgspec.json.decode(error.read())
        detail = str(problem["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        detail = "is this a Heatsink server?"
    return _kind(error.code)(f"the server answered {error.code}: {detail}")


def _kind(status: int) -> type[HeatsinkError]:
    """Return the error class of an HTTP status.

    The class decides whether the command exits with 2 (wrong command) or with 1.
    """
    if status == HTTPStatus.NOT_FOUND:
        return NotFound
    return InvalidInput if status in WRONG_COMMAND else Unavailable


def remote_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        json_option,
        click.option(
            "--token",
            envvar="HEATSINK_TOKEN",
            help="Token of the server, with the scope that the command needs.",
        ),
        click.option(
            "--server",
            envvar="HEATSINK_SERVER",
            default=SERVER,
            show_default=True,
            help="URL of a running `heatsink serve`.",
        ),
    ):
        command = option(command)
    return command
