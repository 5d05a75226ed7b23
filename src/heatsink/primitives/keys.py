"""Keys that applications name, and the partition keys of the store that hold their rows.

A key with one bucket is stored under its own name, bucket 3 of many under `name#3`. `#`, `%` and
NUL are percent-escaped, so no key can take the name of another key's bucket. `seeded_hash` picks
the bucket of an id: BLAKE2b with the deployment's seed as its key, the same in every process and
release. A caller who does not know the seed cannot choose ids that land in one bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from heatsink.errors import InvalidKey

from .subjects import OWN, Kind, Subject

KEY_BYTES_MAX = 1024  # half of what DynamoDB takes, so that a bucket's suffix always fits

PLAIN_MAX = KEY_BYTES_MAX // 3  # so many ASCII characters fit however they are escaped
SEED_BYTES = 16
Hash = Callable[[bytes], int]


def check_key(key: object) -> str:
    """Return the key as plain text. Raises `InvalidKey`, which says what is wrong with the key.

    A `Subject` of Heatsink's own is converted to its text, which equals no user's key. An object of
    a class derived from `str`, such as an enum, is converted to plain text. Such a class may have
    another hash, and encoders refuse it.
    """
    if not isinstance(key, str):
        if isinstance(key, Subject) and key.kind is not Kind.KEY:
            _check_size(key.text)
            return key.text
        raise InvalidKey(f"key must be a str, not {type(key).__name__}")
    if not key:
        raise InvalidKey("key must not be empty")
    if "\0" in key:
        raise InvalidKey("key must not contain NUL (\\0)")
    if not (key.isascii() and len(key) <= PLAIN_MAX):
        _check_size(key)
    return key if type(key) is str else str.__str__(key)


def _check_size(key: str) -> None:
    if len(key) > KEY_BYTES_MAX:
        raise InvalidKey(f"key has {len(key):,} characters; at most {KEY_BYTES_MAX:,} bytes fit")
    try:
        size = len(escape(key).encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"key {key[:40]!a} has a lone surrogate, which is not text") from None
    if size > KEY_BYTES_MAX:
        raise InvalidKey(f"key takes {size:,} bytes once escaped; at most {KEY_BYTES_MAX:,} fit")


def escape(key: str) -> str:
    return key.replace("%", "%25").replace("#", "%23").replace(OWN, "%00")


def unescape(name: str) -> str:
    return name.replace("%00", OWN).replace("%23", "#").replace("%25", "%")


def partition_of(key: str, bucket: int | None) -> str:
    """Return the store's partition key: the bare key if `bucket` is None, or the bucket's name."""
    return escape(key) if bucket is None else f"{escape(key)}#{bucket}"


def key_of(partition: str) -> tuple[str, int | None]:
    """Return the key and the bucket number of a partition key: the inverse of `partition_of`."""
    if "#" not in partition and "%" not in partition:  # as most are
        return partition, None
    name, hash_sign, bucket = partition.partition("#")
    return unescape(name), int(bucket) if hash_sign else None


def seeded_state(seed: bytes) -> Callable[[], blake2b]:
    """Return a function that makes new hash objects with this seed as their key.

    Each call copies a prepared object, which takes a third less time.
    """
    return blake2b(key=seed, digest_size=8).copy


def seeded_hash(seed: bytes) -> Hash:
    """Return a function that hashes bytes to a number of 64 bits, with the seed as its key."""
    begin = seeded_state(seed)

    def hash_64(data: bytes) -> int:
        state = begin()
        state.update(data)
        return int.from_bytes(state.digest(), "big")

    return hash_64
