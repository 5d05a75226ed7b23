"""The acts, in order."""

from __future__ import annotations

from heatsink.errors import InvalidSetting
from heatsink.lab.demo.act import Act

from .bulk import BulkAct
from .celebrity import CelebrityAct
from .chat import ChatAct
from .likes import LikesAct
from .product import ProductAct
from .service import ServiceAct

ACTS: tuple[Act, ...] = (
    *(ChatAct(), LikesAct(), ProductAct(), CelebrityAct(), BulkAct(), ServiceAct()),
)
NAMES = tuple(act.name for act in ACTS)


def find_act(text: str) -> Act:
    """Find the act with this name or number. The first act is number 1."""
    for number, act in enumerate(ACTS, 1):
        if text in (act.name, str(number)):
            return act
    raise InvalidSetting(f"act must be 1 to {len(ACTS)} or one of {', '.join(NAMES)}", field="act")
