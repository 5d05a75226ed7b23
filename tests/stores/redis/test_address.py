from __future__ import annotations

from typing import Any

import pytest

from heatsink.errors import InvalidSetting
from heatsink.stores.redis.address import Options, RedisAddress, RedisKeys, parse


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "redis://localhost",
            RedisAddress("standalone", False, (("localhost", 6379),), "", "", 0, "", Options()),
        ),
        (
            "rediss://ada:p%40ss%2F@[::1]:7000/3?ca=/etc/ca.pem&timeout_s=0.5",
            RedisAddress(
                *("standalone", True, (("::1", 7000),), "ada", "p@ss/", 3, ""),
                Options(timeout_s=0.5, ca="/etc/ca.pem"),
            ),
        ),
        (
            "redis+sentinel://:geheim@one,two:5000/news?prefix=chat",
            RedisAddress(
                *("sentinel", False, (("one", 26379), ("two", 5000)), "", "geheim", 0, "news"),
                Options(prefix="chat"),
            ),
        ),
        (
            "rediss+cluster://one:1,two:2",
            RedisAddress("cluster", True, (("one", 1), ("two", 2)), "", "", 0, "", Options()),
        ),
    ],
)
def test_a_url_names_kind_hosts_and_login(url: str, expected: RedisAddress) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "redis+tribe://host",
        "redis://",
        "redis://host:port",
        "redis://host:70000",
        "redis://host/name",
        "redis+cluster://one,two/1",
        "redis+sentinel://host",
        "redis://host?colour=blue",
        "redis://host?timeout_s=0",
        "redis://host?prefix=a&prefix=b",
        "redis://host#fragment",
        5,
    ],
)
def test_a_bad_url_is_refused_without_its_password(url: Any) -> None:
    if isinstance(url, str):
        url = url.replace("://", "://ada:geheim@")
    with pytest.raises(InvalidSetting) as caught:
        parse(url)
    assert "geheim" not in str(caught.value)


def test_an_address_does_not_show_its_login() -> None:
    address = parse("redis://ada:geheim@host")
    assert "geheim" not in f"{address} {address!r}"
    assert "host:6379" in str(address)


@pytest.mark.parametrize("prefix", ["", "a{b}", "ä", "x" * 65, "a b"])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidSetting, match="prefix"):
        RedisKeys(prefix)
