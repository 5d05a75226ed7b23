"""Where another engine is known to differ from what DynamoDB documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])
ATTRIBUTE = "known_deviations"


class Deviation(NamedTuple):
    engine: str
    reason: str
    cases: tuple[Any, ...]

    def concerns(self, engine: str, parameters: dict[str, Any]) -> bool:
        """Without cases, all of them."""
        given = [value for name, value in parameters.items() if name != "engine"]
        return engine == self.engine and (
            not self.cases or any(case in given for case in self.cases)
        )


def deviates(engine: str, how: str, source: str, *cases: Any) -> Callable[[Test], Test]:
    """The test must fail on `engine`, which does `how` against what `source` says.

    `cases` picks those of a parametrised test that have one of these values among theirs.
    """

    def mark(test: Test) -> Test:
        known = getattr(test, ATTRIBUTE, ())
        setattr(test, ATTRIBUTE, (*known, Deviation(engine, f"{how}; see {source}", cases)))
        return test

    return mark


def expect_known(engine: str, request: pytest.FixtureRequest) -> None:
    callspec = getattr(request.node, "callspec", None)
    parameters = callspec.params if callspec else {}
    for deviation in getattr(request.function, ATTRIBUTE, ()):
        if deviation.concerns(engine, parameters):
            request.applymarker(pytest.mark.xfail(reason=deviation.reason, strict=True))
