"""Which URLs a worker may call when a batch is done: those below a prefix that was allowed.

A prefix is compared part by part, never as text: `https://hooks.example.com` would else allow
`https://hooks.example.com.evil.org`. Scheme, host and port must be equal, and the path must begin
with the prefix's whole segments once dot segments are gone, encoded ones too. What servers read
in different ways is refused, and what is called is the URL as it was checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from heatsink.checks import shown, shown_url
from heatsink.errors import InvalidSetting

LENGTH_MAX = 2_000
PORTS = {"http": 80, "https": 443}
TEXT = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # no user before it
AMBIGUOUS = re.compile(r"[/\\\x00-\x1f\x7f]|\A\.\.?;")  # in a segment once it is decoded
DECODED_MAX = 5  # times: who encodes more often hides something


class Webhook(NamedTuple):
    """A URL in its parts. `segments` are those of the path, none of them a dot segment."""

    scheme: str
    host: str
    port: int
    segments: tuple[str, ...]
    query: str

    @property
    def url(self) -> str:
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.host}{port}/{'/'.join(self.segments)}{query}"

    def is_below(self, prefix: Webhook) -> bool:
        path = prefix.segments[:-1] if prefix.segments[-1:] == ("",) else prefix.segments
        return self[:3] == prefix[:3] and self.segments[: len(path)] == path


def check_prefixes(field: str, prefixes: Iterable[Any]) -> tuple[Webhook, ...]:
    """Prefixes as an operator sets them; what is no URL is refused by its place."""
    if isinstance(prefixes, str) or not isinstance(prefixes, Iterable):
        raise InvalidSetting(f"{field} must be a list of URLs, not {shown(prefixes)}")
    found = []
    for number, prefix in enumerate(prefixes):
        parsed = _parse(prefix)
        if parsed is None or "?" in prefix or "#" in prefix:
            text = shown_url(prefix) if isinstance(prefix, str) else prefix
            raise InvalidSetting(
                f"{field}[{number}] must be a URL like https://host[:port]/path, without a user, "
                f"a query or anything unusual in it, not {shown(text)}"
            )
        if ".." in map(_decoded, urlsplit(prefix).path.split("/")):
            raise InvalidSetting(
                f"{field}[{number}] must not have '..' in its path, not {shown(prefix)}: "
                f"it allows all below /{'/'.join(parsed.segments)}; if that is meant, write that"
            )
        found.append(parsed)
    return tuple(found)


def check_allowed(field: str, url: str, prefixes: Iterable[Webhook]) -> str:
    """For whoever submits a batch: the worker checks it again, by prefixes of its own."""
    if allowed_url(url, prefixes) is None:
        raise InvalidSetting(
            f"{field} {shown(shown_url(url))} is not an allowed webhook: "
            "add its prefix to webhooks="
        )
    return url


def allowed_url(url: object, prefixes: Iterable[Webhook]) -> str | None:
    """The URL to call, if it is below one of the prefixes."""
    webhook = _parse(url)
    if webhook is None or not any(webhook.is_below(prefix) for prefix in prefixes):
        return None
    return webhook.url


def _parse(url: object) -> Webhook | None:
    if not isinstance(url, str) or len(url) > LENGTH_MAX or not TEXT.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    host = parts.netloc.removesuffix(f":{port}") if port is not None else parts.netloc
    if parts.scheme not in PORTS or port == 0 or not HOST.fullmatch(host):
        return None
    segments = _segments(parts.path)
    if segments is None:
        return None
    return Webhook(parts.scheme, host.lower(), port or PORTS[parts.scheme], segments, parts.query)


def _segments(path: str) -> tuple[str, ...] | None:
    """As RFC 3986 removes dot segments (5.2.4). None if servers may disagree about one."""
    kept: list[str] = []
    *folders, last = path.removeprefix("/").split("/")
    for segment in (*folders, last):
        name = _decoded(segment)
        if AMBIGUOUS.search(name) or _decoded(name) != name:
            return None
        if name == "..":
            del kept[-1:]
        elif name != ".":
            kept.append(segment)
    if _decoded(last) in (".", ".."):
        kept.append("")
    return tuple(kept)


def _decoded(segment: str) -> str:
    """As a server reads it that decodes once too often."""
    for _ in range(DECODED_MAX):
        segment = unquote(segment, errors="replace")
    return segment
