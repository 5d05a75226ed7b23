"""Tags of cached values: `forget_tag("shop:7")` drops every value that was loaded with this tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown
from heatsink.primitives.keys import check_key
from heatsink.primitives.subjects import OWN, Kind, Subject

PREFIX = Subject(Kind.TAG, "").text


class TagIndex:
    """The keys that were loaded with each tag, in one cache.

    The index notes a key when its load begins. So a tag also finds loads that are still running.
    When the index has grown to twice `capacity` keys, it forgets the keys that the cache has
    evicted. `is_alive` says whether a key is cached or being loaded.
    """

    def __init__(self, is_alive: Callable[[str], bool], capacity: int) -> None:
        self._is_alive = is_alive
        self._keys_max = 2 * max(capacity, 1)
        self._tags_of: dict[str, tuple[str, ...]] = {}
        self._keys_of: dict[str, dict[str, None]] = {}

    def note(self, key: str, tags: Sequence[str]) -> None:
        """Record that the value of `key` is loaded with these tags."""
        wanted = tuple(tags)
        if self._tags_of.get(key) == wanted:
            return
        self._remove(key)
        if len(self._tags_of) >= self._keys_max:
            for known in [known for known in self._tags_of if not self._is_alive(known)]:
                self._remove(known)
        self._tags_of[key] = wanted
        for tag in wanted:
            self._keys_of.setdefault(tag, {})[key] = None

    def take(self, tag: str) -> list[str]:
        """Return the keys that were loaded with a tag, and forget them here."""
        keys = list(self._keys_of.get(tag, ()))
        for key in keys:
            self._remove(key)
        return keys

    def clear(self) -> None:
        self._tags_of.clear()
        self._keys_of.clear()

    def _remove(self, key: str) -> None:
        for tag in self._tags_of.pop(key, ()):
            keys = self._keys_of[tag]
            del keys[key]
            if not keys:
                del self._keys_of[tag]


def tag_message(tag: str) -> str:
    """Return the text that tells other processes to forget a tag. It equals no user's key."""
    return Subject(Kind.TAG, check_key(tag)).text


def tag_in(message: str) -> str | None:
    """Return the tag in such a text; None if the text is a key."""
    if message.startswith(OWN) and message.startswith(PREFIX):
        return message.removeprefix(PREFIX)
    return None


def check_tags(tags: object) -> None:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise InvalidSetting(
            f'tags must be a list like ["shop:7"], not {shown(tags)}', field="tags"
        )
    for tag in tags:
        check_key(tag)
