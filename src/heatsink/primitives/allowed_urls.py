"""URLs that an operator allows, given as prefixes: which URL may be called, and in which form.

Workers call a batch's webhook only if one of the operator's prefixes allows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from heatsink.errors import InvalidSetting

from .checks import shown, shown_url

LENGTH_MAX = 2_000
PORTS = {"http": 80, "https": 443}
TEXT = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # no user before it
AMBIGUOUS = re.compile(r"[/\\\x00-\x1f\x7f]|\A\.\.?;")  # in a segment once it is decoded
DECODED_MAX = 5  # a URL that is encoded more often than this is refused


class Webhook(NamedTuple):
    """A webhook's URL, parsed; `segments` are the segments of its path, without dot segments.

    Workers may call a URL only if one of the operator's prefixes allows it. Dot segments (`.` and
    `..`), even percent-encoded ones, are resolved first. Then the URL must have the scheme, host
    and port of the prefix, and its path must begin with all segments of the prefix's path.
    Comparing the texts would not be safe: the prefix `https://hooks.example.com` would allow
    `https://hooks.example.com.evil.org`. A URL that servers may read in different ways is refused.
    The worker calls the URL in exactly the form that was checked.
    """

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
    """Parse the prefixes that an operator set. Raises `InvalidSetting` if a prefix is not a URL.

    `field` is the name of the setting, for the error's message.
    """
    if isinstance(prefixes, str) or not isinstance(prefixes, Iterable):
        raise InvalidSetting(f"{field} must be a list of URLs, not {shown(prefixes)}", field=field)
    found = []
    for number, prefix in enumerate(prefixes):
        parsed = _parse(prefix)
        if parsed is None or "?" in prefix or "#" in prefix:
            text = shown_url(prefix) if isinstance(prefix, str) else prefix
            raise InvalidSetting(
                f"{field}[{number}] must be a URL like https://host[:port]/path, without a user, "
                f"a query or anything unusual in it, not {shown(text)}",
                field=field,
            )
        if ".." in map(_decoded, urlsplit(prefix).path.split("/")):
            raise InvalidSetting(
                f"{field}[{number}], {shown(prefix)}, has '..' in its path: "
                f"write the path as /{'/'.join(parsed.segments)}",
                field=field,
            )
        found.append(parsed)
    return tuple(found)


def check_allowed(field: str, url: str, prefixes: Iterable[Webhook]) -> str:
    """Return the URL. Raises `InvalidSetting` if none of the prefixes allows it.

    `submit` makes this check. The worker that later calls the URL checks it again, against the
    prefixes in its own `Actions`.
    """
    if allowed_url(url, prefixes) is None:
        raise InvalidSetting(
            f"{field} {shown(shown_url(url))} is not an allowed webhook: add its prefix to "
            "BulkSettings.webhooks of the client that submits, and to Actions(webhooks=…) of the "
            "workers",
            field=field,
        )
    return url


def allowed_url(url: object, prefixes: Iterable[Webhook]) -> str | None:
    """Return the normalised URL to call if one of the prefixes allows it, otherwise None."""
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
    """Return the segments of a path, with dot segments resolved (RFC 3986, 5.2.4).

    Returns None if servers may read a segment in different ways.
    """
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
    """Percent-decode the segment `DECODED_MAX` times, since some servers do so more than once."""
    for _ in range(DECODED_MAX):
        segment = unquote(segment, errors="replace")
    return segment
