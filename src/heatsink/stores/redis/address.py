"""Where Redis is, from a URL. Credentials are read here and shown nowhere.

redis://[user:password@]host[:port][/database]      rediss:// is the same with TLS
redis+sentinel://[user:password@]host[:port],host/service-name
redis+cluster://[user:password@]host[:port],host

Options behind a `?`: prefix=chat (of all keys), timeout_s=0.25, ca=/path/to/ca.pem (TLS).
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from heatsink.errors import InvalidSetting

from .keys import PREFIX

Kind = Literal["standalone", "sentinel", "cluster"]
KINDS: dict[str, Kind] = {"": "standalone", "sentinel": "sentinel", "cluster": "cluster"}
PORTS: dict[Kind, int] = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}
EXAMPLES = (
    "redis://host:6379, rediss://user:password@host, redis+sentinel://host1,host2/service "
    "or redis+cluster://host1,host2"
)
TIMEOUT_S = 0.25


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S
    ca: str = ""

    def __post_init__(self) -> None:
        if not 0.01 <= self.timeout_s <= 10:
            raise InvalidSetting(f"timeout_s must be from 0.01 to 10, not {self.timeout_s}")


class Address(msgspec.Struct, frozen=True):
    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    user: str
    password: str
    database: int
    service: str
    options: Options

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        """For messages: without user and password."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    def node(self, host: str, port: int) -> Address:
        """One server of it, on its own."""
        return msgspec.structs.replace(self, kind="standalone", hosts=((host, port),), database=0)

    def patient(self, timeout_s: float) -> Address:
        options = msgspec.structs.replace(self.options, timeout_s=timeout_s)
        return msgspec.structs.replace(self, options=options)


def parse(url: str, name: str = "news", timeout_s: float = TIMEOUT_S) -> Address:
    """`name` is the setting that the URL came from, `timeout_s` what it may say otherwise."""
    if not isinstance(url, str):
        raise InvalidSetting(f"{name} must be a URL like {EXAMPLES}, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text may show the password
        raise InvalidSetting(f"{name} must be a URL like {EXAMPLES}") from None
    scheme, _, variant = parts.scheme.partition("+")
    if scheme not in ("redis", "rediss") or variant not in KINDS or parts.fragment:
        raise InvalidSetting(f"{name} must be a URL like {EXAMPLES}")
    if not url.partition(":")[2].startswith("//"):
        raise InvalidSetting(f"{name} lacks its two slashes: {EXAMPLES}")
    kind = KINDS[variant]
    secret, _, hosts = parts.netloc.rpartition("@")
    user, _, password = secret.partition(":")
    database, service = _path(parts, kind, name)
    return Address(
        kind=kind,
        tls=scheme == "rediss",
        hosts=tuple(_host(host, PORTS[kind], name) for host in hosts.split(",")),
        user=unquote(user),
        password=unquote(password),
        database=database,
        service=service,
        options=_options(parts.query, name, timeout_s),
    )


def _host(text: str, port: int, name: str) -> tuple[str, int]:
    host, colon, number = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, number = text, str(port)
    if not host or not number.isdecimal() or not 0 < int(number) < 65_536:
        raise InvalidSetting(f"{name} names no host and port: use {EXAMPLES}")
    return host.strip("[]"), int(number)


def _path(parts: SplitResult, kind: Kind, name: str) -> tuple[int, str]:
    path = parts.path.strip("/")
    if kind == "sentinel":
        if not path or "/" in path:
            raise InvalidSetting("redis+sentinel:// needs a service: redis+sentinel://host/service")
        return 0, unquote(path)
    if path and (kind == "cluster" or not path.isdecimal()):
        raise InvalidSetting(f"the path of {name} must be a database number: use {EXAMPLES}")
    return int(path or 0), ""


def _options(query: str, name: str, timeout_s: float) -> Options:
    pairs = parse_qsl(query)
    named = dict(pairs)
    if len(named) < len(pairs):
        raise InvalidSetting(f"{name} has an option more than once after the ?: name it once")
    try:
        return msgspec.convert({"timeout_s": timeout_s, **named}, Options, strict=False)
    except msgspec.ValidationError as error:
        takes = ", ".join(Options.__struct_fields__)
        raise InvalidSetting(f"{name} takes {takes} after the ?: {error}") from None
