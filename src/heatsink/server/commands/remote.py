"""A client of a running server's HTTP API, with the standard library only."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
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
PIECE_BYTES = 64 * 1_024
WRONG_COMMAND = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
OF_A_PROXY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)
WHILE_SENDING = (BrokenPipeError, ConnectionResetError, ConnectionAbortedError)


class NeverSent(Unavailable):
    """No connection to the server: it has received nothing of the request."""


class NoAnswer(Unavailable):
    """The connection broke before the answer: the server may have done what was asked."""


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
        return self._ask("GET", path, query)

    def put(self, *path: str, body: dict[str, Any]) -> Any:
        return self._ask("PUT", path, {}, body)

    def post(self, *path: str) -> Any:
        return self._ask("POST", path, {})

    def delete(self, *path: str) -> Any:
        return self._ask("DELETE", path, {})

    def lines(self, *path: str, **query: Any) -> Iterator[bytes]:
        """Yield the lines of a streamed response, as they arrive."""
        with self._open("GET", _where(path, query), None, {}) as answer, self._reading("GET"):
            yield from answer

    def send(
        self, *path: str, lines: Iterable[bytes], headers: dict[str, str], **query: Any
    ) -> Any:
        """Send a body of lines that may be larger than memory. Returns the decoded JSON.

        A server may refuse the request before it has read the whole body. Its answer is noticed at
        once, and no further line is drawn.
        """
        parts = urlsplit(self._url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        sent = {**self._headers, **headers, "content-type": "application/x-ndjson"}
        with closing(kind(parts.netloc, timeout=TIMEOUT_S)) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise self._unreachable(error) from None
            with self._reading("POST"):
                where = parts.path + _where(path, query)
                sent["transfer-encoding"] = "chunked"
                try:
                    body = _until_answered(connection, lines)
                    connection.request("POST", where, body, sent, encode_chunked=True)
                except (_Answered, BrokenPipeError, ConnectionResetError):
                    pass  # the server has refused: its answer says why
                answer = connection.getresponse()
                text = answer.read()
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise _refusal(answer.status, text, "authorization" in sent)
            return msgspec.json.decode(text)

    def events(self, after: int | None = None) -> Iterator[tuple[str, Any]]:
        """Yield the name and the data of each Server-Sent Event.

        With `after`, the first events are the decisions after that version of the registry. Raises
        `Unavailable` when the server ends the stream.
        """
        headers = {} if after is None else {"last-event-id": str(after)}
        with self._open("GET", "/v1/events", None, headers) as answer:
            name = ""
            for line in answer:
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    yield name, msgspec.json.decode(line[6:])
        raise Unavailable(f"the server at {self._url} has stopped: repeat the command when it runs")

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, Any],
        body: dict[str, Any] | None = None,
    ) -> Any:
        try:
            where = _where(path, query)
            sent = None if body is None else msgspec.json.encode(body)
            answer = self._open(method, where, sent, {})
        except ValueError:  # its text may contain the token
            raise InvalidSetting(
                "an argument cannot be sent over HTTP: check the key, the reason, --token and "
                "--server for unusual characters"
            ) from None
        with answer, self._reading(method):
            return msgspec.json.decode(answer.read())

    def _open(
        self, method: str, where: str, body: bytes | None, headers: dict[str, str]
    ) -> HTTPResponse:
        sent = {**self._headers, **headers, "content-type": "application/json"}
        request = Request(self._url + where, body, sent, method=method)  # noqa: S310 - checked
        with self._reading(method):
            try:
                return urlopen(request, timeout=TIMEOUT_S)  # type: ignore[no-any-return]  # noqa: S310
            except HTTPError as error:
                raise _refusal(error.code, error.read(), "authorization" in sent) from None
            except URLError as error:
                if isinstance(error.reason, WHILE_SENDING):
                    raise error.reason from None
                raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> NeverSent:
        reason = getattr(error, "reason", error)
        if isinstance(reason, SSLError) and self._url.startswith("https:"):
            return NeverSent(_no_tls(self._url, reason))
        return NeverSent(
            f"no server answers at {shown_url(self._url)} ({reason}): start `heatsink serve`, "
            "or name another with --server"
        )

    @contextmanager
    def _reading(self, method: str) -> Iterator[None]:
        """Raise `NoAnswer` if the connection breaks in the block, which starts to send."""
        try:
            yield
        except (HTTPException, OSError) as error:
            lost = f"the connection to {shown_url(self._url)} was lost before the whole answer came"
            if method == "GET":
                raise NoAnswer(f"{lost} ({error}): check that the server runs") from None
            raise NoAnswer(
                f"{lost} ({error}). It is not known whether the server has done this: when it "
                "answers again, look, or repeat the command"
            ) from None


class _Answered(Exception):
    """The server has answered before the whole body was sent."""


def _where(path: tuple[str, ...], query: dict[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    words = f"?{urlencode(given)}" if given else ""
    return "/" + "/".join(quote(part, safe="") for part in path) + words


def _until_answered(connection: HTTPConnection, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines in pieces. Raises `_Answered` as soon as the server has sent something."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            if select.select([connection.sock], [], [], 0)[0]:
                raise _Answered
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)


def _is_http(url: str) -> bool:
    """Return whether the URL is http(s), without user and password: a token belongs in --token."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


def _no_tls(url: str, reason: SSLError) -> str:
    if isinstance(reason, SSLCertVerificationError):
        return f"the certificate of {shown_url(url)} is not trusted ({reason.verify_message})"
    plain = "http:" + shown_url(url).removeprefix("https:")
    return f"the server at {shown_url(url)} does not speak TLS: use {plain}"


def _refusal(status: int, answer: bytes, has_token: bool) -> HeatsinkError:
    if status == HTTPStatus.UNAUTHORIZED:
        missing = "needs a token: pass --token, or set HEATSINK_TOKEN"
        wrong = "does not accept this token: check --token, or HEATSINK_TOKEN"
        return InvalidInput(f"the server {wrong if has_token else missing}")
    try:
        problem = msgspec.json.decode(answer)
        detail = str(problem["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        if status in OF_A_PROXY:
            return NoAnswer(
                f"a proxy answered {status} for the server. It is not known whether the server has "
                "done this: when it answers again, look, or repeat the command"
            )
        detail = "is this a Heatsink server?"
    return _kind(status)(f"the server answered {status}: {detail}")


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
