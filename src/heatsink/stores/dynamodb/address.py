"""Parses a DynamoDB URL: `dynamodb://TABLE?region=…`."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown, shown_url

TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
LOCAL_REGION = "us-east-1"
USUAL_PORTS = {"http": 80, "https": 443}
EXAMPLE = "dynamodb://messages?region=eu-west-1"
OPTIONS = ("region", "endpoint", "profile", "consistency")


class DynamoAddress(msgspec.Struct, frozen=True):
    """The address of one table.

    `endpoint` is the server's URL: AWS's by default, or an emulator's (`http://127.0.0.1:8322`).
    With `consistent=False`, reads of rows are eventually consistent.
    """

    table: str
    region: str
    endpoint: str
    profile: str | None = None
    consistent: bool = True

    @property
    def is_local(self) -> bool:
        """Whether the endpoint is on this machine.

        A local endpoint is an emulator, which accepts any credentials.
        """
        return urlsplit(self.endpoint).hostname in ("127.0.0.1", "localhost", "::1")


def parse_url(parts: SplitResult) -> DynamoAddress:
    """Parse a DynamoDB URL. Raises `InvalidSetting`, for example for an unknown option."""
    if not parts.netloc and (table := parts.path.strip("/")):
        raise InvalidSetting(
            f"url must have two slashes: write dynamodb://{table}?region=…", field="url"
        )
    if parts.path.strip("/") or parts.fragment:
        extra = shown_url(parts.path + parts.fragment)
        raise InvalidSetting(
            f"url may have only options after the table's name, not {extra}: use {EXAMPLE}",
            field="url",
        )
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSetting(
                f"url has the option {name!r} more than once: name it once", field="url"
            )
    return parse(parts.netloc, dict(pairs))


def parse(table: str, options: dict[str, str]) -> DynamoAddress:
    if not table:
        raise InvalidSetting(f"url names no DynamoDB table: use {EXAMPLE}", field="url")
    check_table(table)
    for name in options:
        if name not in OPTIONS:
            raise InvalidSetting(
                f"url has no option {name!r}: it takes {', '.join(OPTIONS)}", field="url"
            )
    endpoint, region = options.get("endpoint", ""), options.get("region", "")
    if not region and not endpoint:
        raise InvalidSetting(f"url needs a region: use {EXAMPLE}", field="url")
    consistency = options.get("consistency", "strong")
    if consistency not in ("strong", "eventual"):
        raise InvalidSetting(
            f"consistency in the url must be strong or eventual, not {consistency!r}"
        )
    return DynamoAddress(
        table=table,
        region=region or LOCAL_REGION,
        endpoint=_checked(endpoint) or f"https://dynamodb.{region}.amazonaws.com",
        profile=options.get("profile"),
        consistent=consistency == "strong",
    )


def check_table(name: str, field: str = "url") -> str:
    if not TABLE_NAME.fullmatch(name):
        raise InvalidSetting(
            f"{field} names the table {shown(shown_url(name))}, but a DynamoDB table's name has "
            "3 to 255 characters of A-Z a-z 0-9 _ . -",
            field=field,
        )
    return name


def _checked(endpoint: str) -> str:
    if endpoint and not _is_server(endpoint):
        raise InvalidSetting(
            "endpoint must be http://host:port or https://host:port, not "
            f"{shown(shown_url(endpoint))}",
            field="endpoint",
        )
    return _as_sent(endpoint) if endpoint else ""


def _as_sent(endpoint: str) -> str:
    """Return the endpoint with its host in lower case and without a default port.

    The signed HTTP header Host has this form.
    """
    parts = urlsplit(endpoint)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port in (None, USUAL_PORTS[parts.scheme]) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def _is_server(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:  # the port is not a number, or too large
        return False
    is_bare = not (parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and is_bare
