"""ListStreams, DescribeStream, GetShardIterator and GetRecords: the API of DynamoDB Streams."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec

from heatsink.emulator.database import Database, Json
from heatsink.emulator.streams import Shard, Stream, trimmed
from heatsink.stores.dynamodb.wire.errors import ServiceRefused, ValidationFailed, not_found
from heatsink.stores.dynamodb.wire.requests import (
    DescribeStream,
    GetRecords,
    GetShardIterator,
    ListStreams,
)

ITERATOR_S = 15 * 60.0
ANSWER_BYTES_MAX = 1_024 * 1_024


class _Place(msgspec.Struct, array_like=True):
    """What a shard iterator means: the next sequence number to read in a shard."""

    shard: str
    number: str
    made_s: float

    def iterator(self, arn: str) -> str:
        return f"{arn}|1|{urlsafe_b64encode(msgspec.json.encode(self)).decode()}"


def list_streams(database: Database, request: ListStreams) -> Json:
    if request.exclusive_start_stream_arn is not None:
        _check_arn(request.exclusive_start_stream_arn)
    found = [
        stream
        for stream in sorted(database.streams.values(), key=lambda one: one.spec.arn)
        if request.table_name in (None, stream.spec.table)
        and stream.spec.arn > (request.exclusive_start_stream_arn or "")
    ]
    answer: Json = {"Streams": [_listed(stream) for stream in found[: request.limit]]}
    if len(found) > request.limit:
        answer["LastEvaluatedStreamArn"] = found[request.limit - 1].spec.arn
    return answer


def _listed(stream: Stream) -> Json:
    spec = stream.spec
    return {"StreamArn": spec.arn, "StreamLabel": spec.label, "TableName": spec.table}


def _stream(database: Database, arn: str) -> Stream:
    _check_arn(arn)
    stream = database.streams.get(arn)
    if stream is None:
        raise not_found(f"Requested resource not found: Stream: {arn} not found")
    return stream


def _check_arn(arn: str) -> None:
    if not arn.startswith("arn:"):
        raise ValidationFailed(f"Invalid StreamArn: {arn}: ARNs must start with 'arn:'")


def describe_stream(database: Database, request: DescribeStream) -> Json:
    stream = _stream(database, request.stream_arn)
    shards = stream.shards()
    if request.shard_filter is not None:
        parent = stream.shard(request.shard_filter.shard_id)
        shards = [shard for shard in shards if shard.parent == parent.id]
    after = request.exclusive_start_shard_id or ""
    shards = [shard for shard in shards if shard.id > after]
    described: dict[str, Any] = {
        **_listed(stream),
        "StreamStatus": "ENABLED" if stream.closed_s is None else "DISABLED",
        "StreamViewType": stream.spec.view,
        "CreationRequestDateTime": stream.created_s,
        "KeySchema": stream.spec.key_schema,
        "Shards": [shard.describe() for shard in shards[: request.limit]],
    }
    if len(shards) > request.limit:
        described["LastEvaluatedShardId"] = shards[request.limit - 1].id
    return {"StreamDescription": described}


def get_shard_iterator(database: Database, request: GetShardIterator) -> Json:
    stream = _stream(database, request.stream_arn)
    stream.shards()
    shard = stream.shard(request.shard_id)
    if request.shard_iterator_type == "AT_TIMESTAMP":
        number = _at_time(stream, shard, request.timestamp, database.clock.now_s())
    else:
        number = _start(stream, shard, request)
    place = _Place(shard.id, str(number), database.clock.now_s())
    return {"ShardIterator": place.iterator(request.stream_arn)}


def _at_time(stream: Stream, shard: Shard, at_s: float | None, now_s: float) -> int:
    if at_s is None or at_s > now_s:
        raise ValidationFailed("ShardIteratorType AT_TIMESTAMP needs a Timestamp in the past")
    later = (change.number for change in shard.changes if change.at_s >= at_s)
    return next(later, stream.latest)


def _start(stream: Stream, shard: Shard, request: GetShardIterator) -> int:
    kind, given = request.shard_iterator_type, request.sequence_number
    if kind in ("TRIM_HORIZON", "LATEST"):
        if given is not None:
            raise ValidationFailed(
                f"SequenceNumber cannot be specified if ShardIteratorType is {kind}"
            )
        return shard.trimmed_to if kind == "TRIM_HORIZON" else stream.latest
    if given is None or not (given.isascii() and given.isdigit()):
        raise ValidationFailed(f"ShardIteratorType {kind} needs a SequenceNumber of digits")
    number = int(given) + (kind == "AFTER_SEQUENCE_NUMBER")
    if number < shard.first or (shard.last is not None and number > shard.last + 1):
        raise ValidationFailed(f"Invalid SequenceNumber {given}: it is not in the shard")
    if number < shard.trimmed_to:
        raise trimmed()
    return number


def get_records(database: Database, request: GetRecords) -> Json:
    arn, _, rest = request.shard_iterator.partition("|1|")
    try:
        place = msgspec.json.decode(urlsafe_b64decode(rest), type=_Place)
        number = int(place.number)
    except (ValueError, msgspec.DecodeError):
        raise ValidationFailed("Invalid ShardIterator") from None
    if database.clock.now_s() - place.made_s > ITERATOR_S:
        raise ServiceRefused(
            "ExpiredIteratorException",
            "The shard iterator has expired: it is older than 15 minutes",
        )
    stream = _stream(database, arn)
    shard = stream.shard(place.shard)
    if number < shard.trimmed_to:
        raise trimmed()
    records: list[Json] = []
    size = 0
    for change in shard.since(number)[: request.limit]:
        record = stream.shown(change)
        size += record["dynamodb"]["SizeBytes"]
        if records and size > ANSWER_BYTES_MAX:
            break
        records.append(record)
        number = change.number + 1
    answer: Json = {"Records": records}
    if shard.last is None or shard.since(number):
        after = _Place(shard.id, str(number), database.clock.now_s())
        answer["NextShardIterator"] = after.iterator(arn)
    return answer
