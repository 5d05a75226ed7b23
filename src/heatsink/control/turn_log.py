"""What the log hears of a coordinator's turns, of which there are ten a second."""

from __future__ import annotations

import logging

from heatsink.clock import Clock
from heatsink.errors import HeatsinkError

logger = logging.getLogger("heatsink")
reigns = logging.getLogger("heatsink.lead")
EVERY_S = 10.0


class TurnLog:
    """The first failure at once, then every ten seconds how many more, and that it is over.

    What comes and goes is told no more often than what stays. Whether it leads is told each time
    that it changes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_s = float("-inf")
        self._untold = 0
        self._is_told = False
        self._term: int | None = None

    def note(self, error: HeatsinkError | None, term: int | None) -> None:
        """The outcome of a turn: how it failed, or None; and the term in which this one leads."""
        if term != self._term:
            self._note_reign(term)
        if error is not None:
            self._note_failure(error)
        elif self._is_told:
            logger.warning("turns of the coordinator succeed again; %d more failed", self._untold)
            self._untold, self._is_told = 0, False

    def _note_reign(self, term: int | None) -> None:
        if term is None:
            message = f"another coordinator may lead now: term {self._term} is over"
            reigns.info(message, extra={"event": "led", "fields": {"term": self._term}})
        else:
            message = f"this coordinator leads now, in term {term}"
            reigns.info(message, extra={"event": "leads", "fields": {"term": term}})
        self._term = term

    def _note_failure(self, error: HeatsinkError) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s < EVERY_S:
            self._untold += 1
            return
        if self._untold:
            logger.warning("%d more turns of the coordinator failed: %s", self._untold + 1, error)
        else:
            logger.warning("a turn of the coordinator failed: %s", error)
        self._told_s, self._untold, self._is_told = now_s, 0, True
