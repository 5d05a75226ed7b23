"""JSON that somebody else wrote: read, or refused with a reason that helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

Value = TypeVar("Value")
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_pair, _half = re.compile(_HIGH + _LOW), re.compile(_HIGH + b"|" + _LOW)


def read_json(decode: Callable[[bytes], Value], data: bytes) -> Value:
    if not data.strip():
        raise msgspec.DecodeError("it is empty")
    try:
        return decode(data)
    except UnicodeDecodeError:
        raise msgspec.DecodeError("it is not UTF-8") from None
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        half = _half.search(_pair.sub(b"", data))
        if half is None:
            raise
        lone = half[0].decode()
        raise msgspec.DecodeError(f"{lone} is a lone surrogate, which is not text") from None
