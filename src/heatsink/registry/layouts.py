"""Which bucket holds a row: a pure function of the key's epochs and the id's time and hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.keys import partition_of

EPOCHS_MAX = 256


class Epoch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A span of time in which a key's number of buckets does not change.

    The epoch ends when the key's next epoch starts.
    """

    start_ms: int
    buckets: int

    def bucket(self, id_hash: int) -> int | None:
        """Return the number of the bucket that holds an id.

        Returns None if the key has one bucket in this epoch: then the bare key holds the id.
        """
        return None if self.buckets == 1 else id_hash % self.buckets

    def uses(self, bucket: int | None) -> bool:
        return bucket is None if self.buckets == 1 else bucket is not None and bucket < self.buckets

    def partitions(self, key: str) -> Iterator[str]:
        """Iterate over the partition keys that can hold rows of this epoch."""
        if self.buckets == 1:
            yield partition_of(key, None)
        else:
            for bucket in range(self.buckets):
                yield partition_of(key, bucket)


class Layout(msgspec.Struct, frozen=True, gc=False):
    """A key's epochs, oldest first, append-only. The first epoch has one bucket and starts at 0.

    A process may hold 200,000 layouts. The garbage collector does not visit them or their epochs
    (`gc=False`), since one pass over so many objects would hold the event loop too long.
    """

    epochs: tuple[Epoch, ...]

    @classmethod
    def of(cls, later: Iterable[tuple[int, int]] = ()) -> Layout:
        """Return a layout with these epochs after the first one: `(start, buckets)` of each."""
        layout = cls((FIRST_EPOCH,))
        for start_ms, buckets in later:
            layout = layout.then(start_ms, buckets)
        return layout

    def then(self, start_ms: int, buckets: int) -> Layout:
        """Return a copy of this layout with one more epoch at its end."""
        last = self.epochs[-1]
        if start_ms <= last.start_ms:
            raise InvalidSetting(f"an epoch must start after {last.start_ms}, not at {start_ms}")
        if buckets < 1:
            raise InvalidSetting(f"an epoch needs at least one bucket, not {buckets}")
        return Layout((*self.epochs, Epoch(start_ms, buckets)))

    @property
    def later(self) -> tuple[Epoch, ...]:
        """All epochs except the first one. Every key has the first epoch without any decision."""
        return self.epochs[1:]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Return (start, buckets) of each epoch after the first, as `of` takes them."""
        return [(epoch.start_ms, epoch.buckets) for epoch in self.later]

    @property
    def buckets(self) -> int:
        """The number of buckets in the newest epoch."""
        return self.epochs[-1].buckets

    @property
    def max_buckets(self) -> int:
        return max(epoch.buckets for epoch in self.epochs)

    @property
    def full(self) -> bool:
        return len(self.epochs) >= EPOCHS_MAX

    def epoch_at(self, time_ms: int) -> Epoch:
        return next((e for e in reversed(self.epochs) if e.start_ms <= time_ms), FIRST_EPOCH)

    def overlapping(self, from_ms: int | None, to_ms: int | None) -> tuple[Epoch, ...]:
        """Return the epochs that overlap the time from `from_ms` to `to_ms`, including both ends.

        If `from_ms` or `to_ms` is None, the time has no limit at that end.
        """
        ends: list[float] = [epoch.start_ms for epoch in self.epochs[1:]]
        return tuple(
            epoch
            for epoch, end_ms in zip(self.epochs, [*ends, float("inf")], strict=True)
            if (to_ms is None or epoch.start_ms <= to_ms) and (from_ms is None or end_ms > from_ms)
        )

    def partitions(self, key: str) -> list[str]:
        """Return the partition keys that can hold rows of the key, the bare key first."""
        names = [partition_of(key, None)]
        widest = self.max_buckets
        return names if widest == 1 else names + [partition_of(key, n) for n in range(widest)]

    def __repr__(self) -> str:
        return f"Layout.of({self.pairs})"


FIRST_EPOCH = Epoch(0, 1)
COLD = Layout((FIRST_EPOCH,))


class EpochMaker:
    """Makes the layouts of all keys that were ever spread, for a process that starts.

    Keys whose buckets were decided together have equal epochs. This class makes one `Epoch` object
    for all of them, so the process starts faster.
    """

    def __init__(self) -> None:
        self._by_pair: dict[tuple[int, int], Epoch] = {}
        self._by_text = _EpochsByText()

    def layout(self, later: Sequence[tuple[int, int]]) -> Layout:
        """Return the same as `Layout.of(later)`."""
        known, epochs = self._by_pair, [FIRST_EPOCH]
        for pair in later:
            epoch = known.get(pair)
            if epoch is None:
                epoch = known[pair] = Epoch(*pair)
            epochs.append(epoch)
        return _checked(epochs)

    def of_text(self, text: str) -> Layout:
        """Return the layout that `text_of` wrote. Raises `InvalidSetting` if it is malformed."""
        try:
            epochs = [FIRST_EPOCH, *map(self._by_text.__getitem__, text.split())]
        except ValueError:
            raise InvalidSetting(f"epochs must be start:buckets, not {text[:40]!r}") from None
        return _checked(epochs)


def text_of(layout: Layout) -> str:
    """Return the layout as text: each epoch after the first as `start:buckets`."""
    return " ".join(f"{epoch.start_ms}:{epoch.buckets}" for epoch in layout.later)


class _EpochsByText(dict[str, Epoch]):
    def __missing__(self, text: str) -> Epoch:
        start_ms, _, buckets = text.partition(":")
        epoch = self[text] = Epoch(int(start_ms), int(buckets))
        return epoch


def _checked(epochs: list[Epoch]) -> Layout:
    before_ms = -1
    for epoch in epochs:
        if epoch.start_ms <= before_ms or epoch.buckets < 1:
            return Layout.of((epoch.start_ms, epoch.buckets) for epoch in epochs[1:])  # raises
        before_ms = epoch.start_ms
    return Layout(tuple(epochs))
