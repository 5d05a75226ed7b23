"""The engine without a socket: calls in, answers out."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from heatsink.emulator.engine import API, Engine
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.clock import Clock

TABLE = "things"


class Calls:
    """Answers as JSON; `status` is that of the last one."""

    def __init__(self, clock: Clock, settings: EngineSettings | None = None) -> None:
        self.engine = Engine(settings or EngineSettings(), clock, Random(7))
        self.status = 0

    def __call__(self, operation: str, **request: Any) -> Any:
        self.status, body = self.engine.answer(API + operation, msgspec.json.encode(request))
        return msgspec.json.decode(body)

    def create(self, sort_kind: str | None = "S", **options: Any) -> Any:
        kinds = {"pk": "S", **({"sk": sort_kind} if sort_kind else {})}
        roles = zip(kinds, ("HASH", "RANGE"), strict=False)
        return self(
            "CreateTable",
            TableName=TABLE,
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()
            ],
            KeySchema=[{"AttributeName": name, "KeyType": role} for name, role in roles],
            **(options or {"BillingMode": "PAY_PER_REQUEST"}),
        )

    def put(self, pk: str, sk: str = "1", size: int = 0, **options: Any) -> Any:
        item = {"pk": {"S": pk}, "sk": {"S": sk}, "x": {"S": "x" * size}}
        return self("PutItem", TableName=TABLE, Item=item, **options)

    def get(self, pk: str, sk: str = "1", consistent: bool = False) -> Any:
        key = {"pk": {"S": pk}, "sk": {"S": sk}}
        return self("GetItem", TableName=TABLE, Key=key, ConsistentRead=consistent)
