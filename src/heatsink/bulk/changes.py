"""The state machine of a batch's record: pure functions from one version to the next.

Every change is idempotent: if it is applied a second time, it changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from heatsink.errors import Conflict, IdReused, NotFound
from heatsink.primitives.words import counted

from .actions import BUILT_IN, NEXT, WEBHOOK
from .batch import (
    Batch,
    PartEnd,
    PartPlace,
    Progress,
    Span,
    State,
    merged,
    named,
    total,
)
from .controls import Controls
from .store import BOOKED_MS_MAX, PartCounts, PartState, Verb

NO_WORKER = "waiting: no worker"
LACKS = f"{BUILT_IN}lacks/"  # notice of a worker: its partition has items of an action it lacks
CALLBACK = ":done:"  # in the ids of completion callbacks
NEXT_MARK, THEN_MARK, OTHERWISE_MARK = ":next:", ":then:", ":otherwise:"  # of follow-up batches
MARKS = (CALLBACK, NEXT_MARK, THEN_MARK, OTHERWISE_MARK)
NEXT_TRIES = 5  # batches in a row that try to submit what follows
VERSIONS_APART = 1 << 20  # more changes than a record sees in its life


def sealed(
    batch: Batch, generation: str, parts: Sequence[PartPlace], now_ms: int, fingerprint: str = ""
) -> Batch:
    """Return the record of a batch that is now accepted with these parts.

    A batch without items is done immediately.
    """
    items = sum(part.items for part in parts)
    state: State = "running" if items else "done"
    return replace(
        batch,
        state=state,
        generation=generation,
        items=items,
        parts=tuple(parts),
        fingerprint=fingerprint,
        ended_ms=0 if items else now_ms,
        reason="",
    )


def aborted(batch: Batch, reason: str, now_ms: int) -> Batch:
    return replace(batch, state="aborted", reason=reason[:500], ended_ms=now_ms)


def steered(batch: Batch, wish: State) -> Batch:
    """Return the record after a pause, resume or cancel that asks for the state `wish`.

    Raises `Conflict` if the batch cannot change to this state.
    """
    if batch.state == wish or (wish == "cancelling" and batch.state in ("cancelled", "aborted")):
        return batch
    if batch.state not in ("running", "paused"):
        raise Conflict(
            f"batch {batch.id!r} is {batch.state}: only a running or paused batch can be "
            "paused, resumed or cancelled"
        )
    return replace(batch, state=wish)


def unheard(batch: Batch, states: Mapping[str, PartState]) -> list[Verb]:
    """Return the commands (pause, resume, cancel) that some parts did not receive.

    A part misses a command, for example, if the caller dies after changing the record. `states` are
    the current states of the parts, by part id.
    """
    ended = {end.part for end in batch.ends}
    found = {state for part, state in states.items() if part not in ended}
    wanted: list[tuple[Verb, set[PartState]]] = []
    if batch.state == "running":
        wanted = [("release", {"staged"}), ("resume", {"paused"})]
    elif batch.state == "paused":
        wanted = [("pause", {"ready", "staged"})]
    elif batch.state == "cancelling":
        wanted = [("cancel", {"ready", "paused", "staged"})]
    if batch.lap and batch.state != "paused":
        wanted.insert(0, ("retry", {"finished"}))  # also before a cancel: a part needs its lap
    return [verb for verb, behind in wanted if behind & found]


def tried_again(batch: Batch) -> Batch:
    """Return the record after `retry_failed`, with the next `lap`, in which failed items run again.

    Raises `Conflict` if the batch has not failed, or has lost items.
    """
    if batch.state == "running" and batch.lap:
        return batch
    if batch.missing and batch.state != "cancelled":
        raise Conflict(
            f"batch {batch.id!r} has lost {counted(batch.lost, 'item')}: submit all its items "
            f"again with id={batch.id!r}, then retry the failed items"
        )
    if batch.state != "failed":
        raise Conflict(f"batch {batch.id!r} is {batch.state}: only a failed batch can be retried")
    return replace(batch, state="running", lap=batch.lap + 1, ends=(), ended_ms=0)


def with_end(batch: Batch, end: PartEnd, now_ms: int, missing: Sequence[Span] = ()) -> Batch:
    """Return the record with the end of a part added: see `with_ends`."""
    return with_ends(batch, [end], now_ms, {end.part: missing})


def with_ends(
    batch: Batch, ends: Sequence[PartEnd], now_ms: int, missing: Mapping[str, Sequence[Span]]
) -> Batch:
    """Return the record with the ends of parts added. An end of an earlier lap is ignored.

    `missing` are the items that servers have lost, by part. If a part was recorded as lost and ends
    after all, the real end replaces the loss.
    """
    new = {end.part: end for end in _uncounted(batch, ends)}
    if not new:
        return batch
    known = (*(other for other in batch.ends if other.part not in new), *new.values())
    gaps = {part: tuple(missing.get(part, ())) for part in new}
    parts = (
        place
        if gaps.get(place.id, place.missing) == place.missing
        else replace(place, missing=gaps[place.id])
        for place in batch.parts
    )
    batch = replace(batch, parts=tuple(parts), ends=known)
    if len(known) < len(batch.parts):
        return batch
    return replace(batch, state=final_state(batch, known), ended_ms=now_ms)


def _uncounted(batch: Batch, ends: Sequence[PartEnd]) -> list[PartEnd]:
    """Return those ends that the record must still count."""
    places = {place.id: place for place in batch.parts}
    known = {end.part: end for end in batch.ends}
    return [
        end
        for end in ends
        if end.part in places
        and end.lap == batch.lap
        and (
            end.part not in known
            or (known[end.part] != end and is_gone(known[end.part], places[end.part]))
        )
    ]


def counted_ends(record: Batch | None, ends: Sequence[PartEnd]) -> list[PartEnd]:
    """Return those of the `ends` that the record already counts; without a record, all of them.

    The caller may forget these ends. If Redis has lost the change that counted an end, the record
    lacks the end, and the caller must add it again.
    """
    left = set() if record is None else {end.part for end in _uncounted(record, ends)}
    return [end for end in ends if end.part not in left]


def concluded(batch: Batch, end: PartEnd, now_ms: int) -> Batch | None:
    """Return the record of a batch of one item after its item was done.

    Returns None if more must happen than a change of the record: the batch has a callback or
    follow-up batches to submit, or it is not a running batch of one item. Then the partition
    reports the end as it does for any other batch.
    """
    parts, is_done = batch.parts, end.items == end.done > 0
    is_plain = batch.is_sealed and not (batch.is_final or batch.is_followed or batch.ends)
    if not (is_plain and is_done and len(parts) == 1 and parts[0].id == end.part):
        return None
    if parts[0].items != end.done or parts[0].missing or batch.lap != end.lap:
        return None
    return with_end(batch, end, now_ms)


def is_gone(end: PartEnd, place: PartPlace) -> bool:
    """Return whether this end records that a server lost the whole part."""
    return end.items == 0 < place.items


def gone(batch: Batch, part: str) -> PartEnd:
    """Return the end of a part that its server has lost as a whole: it counts as ended."""
    return PartEnd(batch.id, part, batch.lap, 0, 0, 0)


def short(batch: Batch, part: str, missing: Sequence[Span]) -> Batch:
    """Return the record after a server has lost the items `missing` of a running part."""
    place = next((place for place in batch.parts if place.id == part), None)
    if place is None or any(end.part == part for end in batch.ends):
        return batch  # its end was recorded meanwhile
    return _missing(batch, place, missing)


def found_again(batch: Batch, part: str) -> Batch:
    """Return the record after a lost part is back, for example from a backup of the server.

    The part no longer counts as lost or ended.
    """
    place = next((place for place in batch.parts if place.id == part), None)
    end = next((end for end in batch.ends if end.part == part), None)
    if place is None or end is None or not is_gone(end, place):
        return batch
    ends = tuple(other for other in batch.ends if other is not end)
    state: State = "running" if batch.state == "lost" else batch.state
    return replace(_missing(batch, place, ()), ends=ends, state=state, ended_ms=0)


def lacks(place: PartPlace, counts: PartCounts) -> bool:
    """Return whether a part has lost items that are not recorded as missing."""
    return place.items - (counts.size - counts.lost) > total(place.missing)


def odd_parts(batch: Batch, found: Sequence[PartCounts | None]) -> list[PartPlace]:
    """Return the parts of the batch that differ from what the batch's record says.

    A part differs in three cases. It has ended, has lost items or is missing, and the record does
    not say so. It exists although the record says that it is lost. Or it carries a newer copy of
    the record. `found` are the counts of the parts, in the order of `batch.parts`.
    """
    if not batch.is_sealed or batch.state in ("done", "failed", "cancelled"):
        return []
    ends = {end.part: end for end in batch.ends}
    known = zip(batch.parts, found, strict=True)
    return [place for place, counts in known if is_odd(batch, ends.get(place.id), place, counts)]


def is_odd(batch: Batch, end: PartEnd | None, place: PartPlace, counts: PartCounts | None) -> bool:
    if end is not None:
        is_back = counts is not None and counts.size > counts.lost
        return is_back and is_gone(end, place)
    if counts is None or lacks(place, counts) or counts.recorded > batch.version:
        return True
    return counts.state == "finished" and counts.lap == batch.lap


def _missing(batch: Batch, place: PartPlace, missing: Sequence[Span]) -> Batch:
    parts = (replace(p, missing=tuple(missing)) if p is place else p for p in batch.parts)
    return replace(batch, parts=tuple(parts))


def may_restore(batch: Batch) -> bool:
    """Return whether the batch's lost items are restored if the same items are submitted again."""
    return bool(batch.missing) and batch.state in ("lost", "running", "paused")


def restored(batch: Batch, parts: Sequence[PartPlace]) -> Batch:
    """Return the record after the lost items were submitted again, in the new `parts`.

    The old parts keep all other items.
    """
    kept = []
    for place in batch.parts:
        left = place.items - total(place.missing)
        moved = merged((*place.moved, *place.missing))
        if left:
            kept.append(replace(place, items=left, missing=(), moved=moved))
    ids = {place.id for place in kept}
    return replace(
        batch,
        state="paused" if batch.state == "paused" else "running",
        parts=(*kept, *parts),
        ends=tuple(end for end in batch.ends if end.part in ids),
        restored=batch.restored + 1,
        ended_ms=0,
        reason="",
    )


def rebuilt(carried: Batch, known: Batch | None) -> Batch:
    """Return a new record for a batch whose record was lost by its server.

    `carried` is the newest copy of the record that the batch's parts keep. `known` is the record
    that the server has now, if any. The new record gets a version that is higher than any that the
    lost record can have had, since parts ignore commands of an older version.
    """
    version = max(carried.version, known.version if known else 0) + VERSIONS_APART
    return replace(carried, version=version, ends=(), ended_ms=0).tagged()


def final_state(batch: Batch, ends: Sequence[PartEnd]) -> State:
    if any(end.cancelled for end in ends):
        return "cancelled"
    if sum(end.items for end in ends) < sum(place.items for place in batch.parts):
        return "cancelled" if batch.state == "cancelling" else "lost"
    return "failed" if any(end.failed for end in ends) else "done"


def reason(batch: Batch, offered: Collection[str]) -> str:
    """Return why the batch was aborted, which items it lost, or why no worker runs it.

    Returns an empty text if none of these applies. `offered` are the actions of live workers.
    """
    if batch.missing and batch.state != "cancelled":
        return (
            f"the queue's server lost {batch.lost:,} of {counted(batch.items, 'item')} "
            f"({named(batch.missing)}): submit all items again with id={batch.id!r} to run these"
        )
    if batch.state != "running" or batch.action in offered:
        return batch.reason
    if not offered:
        return f"{NO_WORKER} runs"
    return f"{NO_WORKER} has action {batch.action!r}"


def lacked_at(offered: Iterable[str]) -> dict[int, set[str]]:
    """Return the partitions with items of actions that their owners lack, and these actions.

    `offered` are what live workers announce: actions, and notices such as `heatsink.lacks/3/mail`.
    """
    found: dict[int, set[str]] = {}
    for notice in offered:
        if notice.startswith(LACKS):
            partition, _, action = notice.removeprefix(LACKS).partition("/")
            found.setdefault(int(partition), set()).add(action)
    return found


def progress_of(batch: Batch, counts: Mapping[str, PartCounts | None]) -> Progress:
    """Return the progress of a batch, without its outlook (`eta_s` and `reason`).

    `counts` are the current counts of the parts, by part id. For a part without counts, the
    recorded end counts.
    """
    ends = {end.part: end for end in batch.ends}
    known = [counts.get(part.id) or ends.get(part.id) for part in batch.parts]
    done, failed, cancelled = (
        sum(getattr(each, name) for each in known if each)
        for name in ("done", "failed", "cancelled")
    )
    running = sum(count.running for count in counts.values() if count)
    lost = total(batch.missing)
    return Progress(
        id=batch.id,
        action=batch.action,
        tenant=batch.tenant,
        state=batch.state,
        accepted=batch.items,
        done=done,
        failed=failed,
        cancelled=cancelled,
        lost=lost,
        running=running,
        waiting=max(batch.items - done - failed - cancelled - lost - running, 0),
        eta_s=None,
        missing=list(batch.missing),
        start_ms=batch.start_ms,
    )


def waits_to_start(batch: Batch, now_ms: int) -> str:
    """Return a text that says when the batch starts; empty if its start time has come."""
    if batch.state != "running" or batch.start_ms <= now_ms:
        return ""
    start = datetime.fromtimestamp(batch.start_ms / 1000, UTC)
    return f"waiting until {start:%Y-%m-%d %H:%M:%S} UTC"


def paused_by(batch: Batch, controls: Controls) -> str:
    """Return a text that says whether the batch's tenant or action is paused; empty if not."""
    if batch.state != "running" or not controls.pauses(batch.tenant, batch.action):
        return ""
    held = "tenant" if batch.tenant in controls.tenants else "action"
    return f"the {held} {getattr(batch, held)!r} is paused"


def held_back(batch: Batch, counts: Sequence[PartCounts]) -> str:
    """Return a text that says whether the batch's tenant or its action is paused; empty if not.

    `counts` are those of the batch's parts.
    """
    held = next((count.held for count in counts if count.held), "")
    return f"the {held} {getattr(batch, held)!r} is paused" if held else ""


class Ahead(msgspec.Struct, frozen=True):
    """The work left in a batch.

    Of the `waiting` items, `backing_off` items wait for their next attempt. The last of these is
    due in `backoff_s` seconds. `per_s` is the rate limit; None without a limit. The next free start
    time under this limit is in `start_s` seconds.
    """

    waiting: int
    running: int
    done: int = 0
    backing_off: int = 0
    backoff_s: float = 0.0
    per_s: float | None = None
    start_s: float = 0.0

    @property
    def left(self) -> int:
        return self.waiting + self.running


def ahead_of(
    counts: Sequence[PartCounts], left: int, per_s: float | None, start_ms: float
) -> Ahead:
    running = sum(count.running for count in counts)
    return Ahead(
        waiting=left - running,
        running=running,
        done=sum(count.done for count in counts),
        backing_off=sum(count.backing_off for count in counts),
        backoff_s=max((count.backoff_ms for count in counts), default=0) / 1000,
        per_s=per_s,
        start_s=start_ms / 1000,
    )


def waits_for(ahead: Ahead, batch: Batch, offered: Collection[str]) -> str:
    """Return a text that says what the batch waits for: a worker, its rate limit, or retries.

    Returns an empty text if an item runs or could run now, and if no item is left. `offered` are
    the actions and notices of live workers.
    """
    if ahead.running or not ahead.waiting:
        return ""
    lacked = lacked_at(offered)
    if any(batch.action in lacked.get(part.partition, ()) for part in batch.parts):
        return f"waiting until a worker with action {batch.action!r} takes its partition"
    reasons = []
    if ahead.backing_off < ahead.waiting:
        if ahead.per_s is None or ahead.start_s <= 0:
            return ""
        reasons.append(f"its rate limit of {ahead.per_s:.3g}/s")
    if ahead.backing_off:
        reasons.append(f"its next retry, in up to {ahead.backoff_s:.1f} s")
    return f"waiting for {' and '.join(reasons)}"


def eta_s(batch: Batch, ahead: Ahead, now_ms: int) -> float | None:
    """Return the estimated seconds until the batch ends, at its speed so far.

    The estimate is at least the time that the rate limit and the back-off require. Returns None if
    there is no rate limit and no item is done yet.
    """
    began_ms = max(batch.submitted_ms, batch.start_ms)
    elapsed_s, left = max(now_ms - began_ms, 1) / 1000, ahead.left
    by_rate_s = None
    if ahead.per_s:
        booked_s = ahead.start_s - BOOKED_MS_MAX / 1000  # some booked starts are this batch's
        by_rate_s = max(left / ahead.per_s, booked_s + (left - 1) / ahead.per_s)
    by_pace_s = left * elapsed_s / ahead.done if ahead.done else by_rate_s
    if by_pace_s is None:
        return None
    return max(by_pace_s, by_rate_s or 0.0, ahead.backoff_s)


def check_same(known: Batch, wanted: Batch) -> None:
    """Raise `IdReused` if `wanted` differs in action, tenant, items or options from `known`.

    `known` is the stored batch with the same id. Items and options are compared only if `known` was
    accepted with a fingerprint of its items.
    """
    if (known.action, known.tenant) != (wanted.action, wanted.tenant):
        raise IdReused(
            f"id {wanted.id!r} is taken by a batch with action {known.action!r} and tenant "
            f"{known.tenant!r}: choose another id"
        )
    if not known.fingerprint:  # not accepted yet, or by a release without fingerprints
        return
    for option in ("priority", "rate", "on_done", "result_bytes", "then", "otherwise"):
        before, now = getattr(known, option), getattr(wanted, option)
        if before != now:
            raise IdReused(
                f"id {wanted.id!r} is taken by a batch with {option} {_said(before)}, "
                f"not {_said(now)}: choose another id"
            )
    if wanted.fingerprint and wanted.fingerprint != known.fingerprint:
        raise IdReused(f"id {wanted.id!r} is taken by a batch with other items: choose another id")


def _said(option: object) -> str:
    return repr(str(option)) if option else "none"


def callbacks(batch: Batch, now_ms: int) -> Iterator[tuple[Batch, dict[str, str | int]]]:
    """Return the batches to submit when `batch` has ended, each with its one item.

    One of them delivers the outcome to `on_done`. The other submits the follow-up batches.
    """
    if batch.on_done:
        yield _callback(batch, now_ms)
    has_followers = batch.then is not None or batch.otherwise is not None
    if has_followers and batch.state in ("done", "failed"):
        yield _submitter(batch, batch.id, str(batch.lap), now_ms)
    if batch.action == NEXT and batch.state == "failed":
        parent, _, lap = batch.id.rpartition(NEXT_MARK)
        lap, _, tries = lap.partition(".")
        if int(tries or 0) < NEXT_TRIES - 1:
            yield _submitter(batch, parent, f"{lap}.{int(tries or 0) + 1}", now_ms)


def _submitter(
    batch: Batch, parent: str, lap: str, now_ms: int
) -> tuple[Batch, dict[str, str | int]]:
    """Return the internal batch that submits the follow-up batches of `parent`, and its one item.

    The internal batch fails if three workers die while they run it. Then another one, with a new
    `lap`, takes its place.
    """
    submitter = Batch(
        id=f"{parent}{NEXT_MARK}{lap}",
        action=NEXT,
        tenant=batch.tenant,
        submitted_ms=now_ms,
        weight=batch.weight,
    )
    return submitter, {"batch": parent, "lap": int(lap.partition(".")[0])}


def _callback(batch: Batch, now_ms: int) -> tuple[Batch, dict[str, str | int]]:
    outcome: dict[str, str | int] = {
        "batch": batch.id,
        "action": batch.action,
        "tenant": batch.tenant,
        "state": batch.state,
        "items": batch.items,
        "done": sum(end.done for end in batch.ends),
        "failed": sum(end.failed for end in batch.ends),
        "cancelled": sum(end.cancelled for end in batch.ends),
        "lost": batch.lost,
    }
    is_url = "://" in batch.on_done
    lap = f"{batch.lap}.{batch.restored}" if batch.restored else f"{batch.lap}"
    told = Batch(
        id=f"{batch.id}{CALLBACK}{lap}",
        action=WEBHOOK if is_url else batch.on_done,
        tenant=batch.tenant,
        submitted_ms=now_ms,
        weight=batch.weight,
    )
    return told, {**outcome, "url": batch.on_done} if is_url else outcome


def check_found(batch: Batch | None, id: str) -> Batch:
    if batch is None:
        raise NotFound(
            f"there is no batch {id!r}: the id is wrong, or its record was deleted, 7 days after "
            "the end (1 hour after, if you chose no id and the only item was done)"
        )
    return batch


def is_following(id: str) -> bool:
    """Return whether this is the id of a batch that follows another one."""
    return THEN_MARK in id or OTHERWISE_MARK in id


def has_ended(counts: PartCounts | None, end: PartEnd) -> bool:
    """Whether the part shows this end. It does not if Redis has lost its last writes."""
    if counts is None or counts.state != "finished":
        return False
    found = (counts.lap, counts.done, counts.failed, counts.cancelled)
    return found == (end.lap, end.done, end.failed, end.cancelled)


def has_part(batch: Batch, part: str) -> bool:
    return any(place.id == part for place in batch.parts)
