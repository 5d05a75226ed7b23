"""Heat from programs without this library: plain fields and JSON."""

from __future__ import annotations

import pytest

from heatsink.errors import InvalidInput
from heatsink.heat.fleet import Aggregator
from heatsink.heat.heat import Heat, Report
from heatsink.heat.plain import UNITS_S_MAX, plain_report, read_fields

NOW_S = 1_800_000_000.0


def window_of(*reports: Report) -> dict[str, float]:
    """The write units per second of each key in the complete window."""
    aggregator = Aggregator(1.0)
    for report in reports:
        assert aggregator.add(report, NOW_S)
    (window,) = [each for each in aggregator.take(NOW_S + 1.5) if each.window == NOW_S]
    return {key: heat.write_units_s for key, heat in window.keys.items()}


def test_the_form_of_the_article_is_understood() -> None:
    fields = {"conversation_id": "conv_abc123", "wps": "950", "ts": "1800000000"}
    assert window_of(read_fields(fields)) == {"conv_abc123": 950}


@pytest.mark.parametrize("ts", ["", "0", "1800000000", "1800000000123", "1800000000.5"])
def test_times_are_seconds_or_milliseconds_or_now(ts: str) -> None:
    assert window_of(read_fields({"key": "k", "writes_s": "900", "ts": ts})) == {"k": 900}


def test_several_keys_come_as_json() -> None:
    body = '[{"key": "a", "writes_s": 900}, {"key": "b", "writes_s": 20.5, "reads_s": 4}]'
    assert window_of(read_fields({"json": body, "server": "api-1"})) == {"a": 900, "b": 21}


def test_named_senders_add_up_and_one_of_them_does_not_add_to_itself() -> None:
    first, second = ({"key": "k", "wps": "500", "server": name} for name in ("api-1", "api-2"))
    assert window_of(read_fields(first), read_fields(first), read_fields(second)) == {"k": 1_000}


def test_senders_without_a_name_add_up_to_the_cap_of_one_sender() -> None:
    report = read_fields({"key": "k", "wps": "4000"})
    assert window_of(report, report) == {"k": 8_000}
    assert window_of(*[report] * 5) == {"k": UNITS_S_MAX}


def test_what_one_sender_can_raise_is_capped() -> None:
    report = read_fields({"key": "k", "wps": "999999999", "server": "liar"})
    assert window_of(report) == {"k": UNITS_S_MAX}


def test_a_partial_report_says_nothing_about_other_keys_and_counts_no_server() -> None:
    aggregator = Aggregator(1.0)
    ours = Report("ours", int(NOW_S), 1.0, True, 8, {"k": Heat(100, 100)})
    assert aggregator.add(ours, NOW_S + 1)
    assert aggregator.add(plain_report([{"key": "x", "writes_s": 50}], "theirs"), NOW_S)
    (window,) = [each for each in aggregator.take(NOW_S + 1.5) if each.window == NOW_S]
    assert window.unreported_s == 7, "the bound of our own servers stays"
    assert aggregator.servers == 1


def test_an_old_report_is_dropped() -> None:
    old = read_fields({"key": "k", "wps": "900", "ts": str(NOW_S - 60)})
    assert not Aggregator(1.0).add(old, NOW_S)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"wps": "950"}, "key must be text"),
        ({"key": "k"}, "writes_s"),
        ({"key": "k", "wps": "many"}, "writes_s must be a number"),
        ({"key": "k", "wps": "-1"}, "writes_s must be a number"),
        ({"key": "k", "wps": "nan"}, "writes_s must be a number"),
        ({"key": "\0author:ada", "wps": "1"}, "key must be text"),
        ({"key": "k" * 2_000, "wps": "1"}, "key must be text"),
        ({"key": "k", "wps": "1", "colour": "red"}, "colour is unknown"),
        ({"key": "k", "wps": "1", "ts": "yesterday"}, "time must be a number"),
        ({"json": "{"}, "json must be"),
        ({"json": "[]"}, "1 to 256 keys"),
        ({"json": "[5]"}, "each key must be an object"),
    ],
)
def test_a_malformed_report_names_the_field(fields: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_fields(fields)
