"""Subjects of decisions, pins, layouts and heat: a user's key, or one of Heatsink's own things.

Dictionaries, reports and stores hold a subject as its text. The text of a user's key is the key
itself. Every other text begins with NUL, which no user's key may contain. So no user's key can be
taken for one of Heatsink's own subjects. Only this module parses the text.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

OWN = "\0"


class Kind(StrEnum):
    """What a decision is about, for example a user's key. Each name is unique in its kind."""

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
    TRIAL = "trial"
    """What the leader would decide for a key of a table that may not be spread yet."""
    AUTHOR = "author"
    """Whether an author's posts are pushed or pulled."""
    ADOPTED = "adopted"
    """Records that a user's own table was adopted, and since when: `orders/1700000000000`."""
    DECLARED = "declared"
    """Records how a user's own table was declared: its keys and its rules."""
    INDEX = "index"
    """A value of a global index of a user's own table: `orders/by-state/new`."""
    SPREAD = "spread"
    """Records how far the spreading of a global index is: `orders/by-state`."""
    SWEPT = "swept"
    """Records how often a value of an index had no item in its retired buckets."""
    WORKERS = "workers"
    """The workers of a queue partition, by its number."""
    PARTITION = "partition"
    """A partition of the data store, by its number."""
    REDIS = "redis"
    """A Redis server of the queue, by its address."""
    SLOTS = "slots"
    """Slots of a Redis or Valkey Cluster that were moved: `5, 7-9`."""
    SETTING = "setting"
    """A setting of the whole deployment."""
    SCHEDULE = "schedule"
    """What a schedule submits, and when."""
    STARTED = "started"
    """The last start of a schedule."""
    CACHED = "cached"
    """A value that timelines keep near for a moment."""
    RETRY = "retry"
    """A row with the id of an append that its caller names by a text of its own."""
    TAG = "tag"
    """A tag of cached values."""


WORDS: dict[str, str] = {
    Kind.KEY: "",
    Kind.POSTS: "posts of ",
    Kind.FOLLOWERS: "followers of ",
    Kind.FOLLOWING: "follows of ",
    Kind.TRIAL: "dry run of table ",
    Kind.ADOPTED: "table ",
    Kind.DECLARED: "table ",
    Kind.SPREAD: "spreading of index ",
    Kind.SWEPT: "sweep of index ",
    Kind.WORKERS: "workers of partition ",
    Kind.REDIS: "Redis server ",
    Kind.STARTED: "schedule ",
}
"""The words before the name in texts for people. For any other kind, the kind itself is used."""

WITH_ROWS = frozenset(
    {Kind.KEY, Kind.POSTS, Kind.FOLLOWERS, Kind.FOLLOWING, Kind.TABLE, Kind.INDEX}
)


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
        """Whether the subject's layout places rows.

        For such a subject, more buckets make reads more expensive.
        """
        return self.kind in WITH_ROWS

    @property
    def has_layout(self) -> bool:
        """Whether a pin of the subject becomes an epoch in the subject's layout.

        An author's mode is an example.
        """
        return self.has_rows or self.kind is Kind.AUTHOR

    @property
    def words(self) -> str:
        """The subject in words, for people. A user's key is shown as it is."""
        return subject_words(self.kind, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


AnyKey = str | Subject
"""What calls accept as a key: a text of the user, or a subject of Heatsink's own."""


def subject_words(kind: str, name: str) -> str:
    """Return a subject in words. Its kind may be one that only a newer release knows."""
    if kind == Kind.ADOPTED:  # the note follows the name of the table
        name = name.rpartition("/")[0]
    return WORDS.get(kind, f"{kind} ") + name


def has_rows(text: str) -> bool:
    """Return whether the subject with this text has rows, like `subject_of(text).has_rows`."""
    return not text.startswith(OWN) or subject_of(text).has_rows


def subject_of(text: str) -> Subject:
    """Return the subject with this text: the inverse of `Subject.text`."""
    if not text.startswith(OWN):
        return Subject(Kind.KEY, text)
    kind, _, name = text[len(OWN) :].partition(":")
    return Subject(Kind(kind), name)
