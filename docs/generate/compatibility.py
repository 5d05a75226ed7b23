"""What the emulator has of DynamoDB: every operation and parameter that the SDK knows."""

from __future__ import annotations

from typing import Any

import botocore.session

from docs.generate.markdown import code, paragraphs, table
from heatsink.emulator.engine import OPERATIONS, REFUSED, STREAMS_API

COLUMNS = ("operation", "parameters", "refused parameters")


def markdown() -> str:
    session = botocore.session.get_session()
    services = (("dynamodb", ""), ("dynamodbstreams", STREAMS_API))
    rows: list[list[str]] = []
    for service, prefix in services:
        model = session.get_service_model(service)
        names = [name for name in sorted(model.operation_names) if prefix + name in OPERATIONS]
        rows += [_row(name, prefix, model.operation_model(name)) for name in names]
    reasons: dict[str, list[str]] = {}
    for name, reason in REFUSED.items():
        reasons.setdefault(reason, []).append(name)
    refused = [[", ".join(map(code, names)), reason] for reason, names in reasons.items()]
    return paragraphs(
        "## Supported operations",
        table(COLUMNS, rows),
        "## Refused operations",
        "The emulator answers these with UnknownOperationException and the reason.",
        table(("operations", "the emulator says"), refused),
    )


def _row(name: str, prefix: str, model: Any) -> list[str]:
    decoder, _ = OPERATIONS[prefix + name]
    known = decoder.type.__struct_encode_fields__
    members = list(model.input_shape.members) if model.input_shape is not None else []
    return [
        code(name),
        ", ".join(code(member) for member in members if member in known),
        ", ".join(code(member) for member in members if member not in known),
    ]
