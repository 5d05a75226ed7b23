"""What decisions, pins, layouts and heat are about: a user's key, or a thing of Heatsink's own.

Dictionaries, reports and stores hold a subject as its text. The text of a user's key is the key
itself. Every other text begins with NUL, which no user's key may contain, so no user's key can be
taken for a subject of ours, whatever it begins with. Nobody but this module looks into the text.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

OWN = "\0"


class Kind(StrEnum):
    """The kinds of subjects; the name of a subject says which one of its kind it is."""

    KEY = "key"
    """A user's key."""
    POSTS = "posts"
    """Rows: the posts of an author."""
    FOLLOWERS = "followers"
    """Rows and a counter: who follows an author."""
    FOLLOWING = "following"
    """Rows: whom a user follows."""
    TABLE = "table"
    """A partition key of a user's own DynamoDB table: `orders/customer-7`."""
    AUTHOR = "author"
    """Whether an author's posts are pushed or pulled."""
    ADOPTED = "adopted"
    """A note that a user's own table was adopted, and since when: `orders/1700000000000`."""
    WORKERS = "workers"
    """The workers of a queue partition, by its number."""
    PARTITION = "partition"
    """A partition of the data store, by its number."""
    REDIS = "redis"
    """A Redis server of the queue, by its address."""
    SETTING = "setting"
    """A setting of the whole deployment."""
    CACHED = "cached"
    """A value that timelines keep near for a moment."""


WITH_ROWS = frozenset({Kind.KEY, Kind.POSTS, Kind.FOLLOWERS, Kind.FOLLOWING, Kind.TABLE})


class Subject(msgspec.Struct, frozen=True, array_like=True):
    """A kind and a name. Timelines use subjects where users use keys: `log.append(subject, …)`."""

    kind: Kind
    name: str

    @property
    def text(self) -> str:
        """The text of this subject in dictionaries, reports and stores."""
        return self.name if self.kind is Kind.KEY else f"{OWN}{self.kind}:{self.name}"

    @property
    def has_rows(self) -> bool:
        """Whether its layout places rows, so that more buckets make reads more expensive."""
        return self.kind in WITH_ROWS

    @property
    def has_layout(self) -> bool:
        """Whether pins become epochs of its layout; an author's mode is an epoch too."""
        return self.has_rows or self.kind is Kind.AUTHOR

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


AnyKey = str | Subject
"""What calls take for a key: a user's text, or a subject of Heatsink's own."""


def subject_of(text: str) -> Subject:
    """The subject of a text."""
    if not text.startswith(OWN):
        return Subject(Kind.KEY, text)
    kind, _, name = text[len(OWN) :].partition(":")
    return Subject(Kind(kind), name)
