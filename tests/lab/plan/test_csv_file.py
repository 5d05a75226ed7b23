from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsink.errors import InvalidSetting
from heatsink.lab.plan.traces import BYTES_MAX, CsvTrace, TraceRequest

HEADER = "time,key,operation,bytes\n"
NOON_S = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()


def requests_of(folder: Path, text: str | bytes, name: str = "trace.csv") -> list[TraceRequest]:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(CsvTrace(file).requests())


def refusal_of(folder: Path, text: str | bytes) -> str:
    with pytest.raises(InvalidSetting) as refused:
        requests_of(folder, text)
    return str(refused.value)


def test_lines_become_requests(tmp_path: Path) -> None:
    found = requests_of(tmp_path, HEADER + "100,a,read,500\n100.25,b,write,1025\n")
    assert found == [TraceRequest(100.0, "a", False, 500), TraceRequest(100.25, "b", True, 1_025)]


def test_columns_may_come_in_any_order_with_others_between(tmp_path: Path) -> None:
    text = "\ufeffbytes,client, Key ,OPERATION,time\n7,x,a,PUT,100\n\n8,y,b,get,101\n"
    assert requests_of(tmp_path, text) == [
        TraceRequest(100.0, "a", True, 7),
        TraceRequest(101.0, "b", False, 8),
    ]


@pytest.mark.parametrize(
    "time",
    [
        f"{NOON_S}",
        f"{NOON_S * 1000:.0f}",
        "2026-11-15T12:00:00Z",
        "2026-11-15 12:00:00",
        "2026-11-15T13:00:00.000+01:00",
    ],
)
def test_times_may_be_numbers_or_iso(tmp_path: Path, time: str) -> None:
    (found,) = requests_of(tmp_path, f"{HEADER}{time},a,read,1\n")
    assert found.time_s == NOON_S


def test_a_gzipped_trace_is_read_whatever_its_name(tmp_path: Path) -> None:
    zipped = gzip.compress((HEADER + "1,a,read,1\n").encode())
    assert requests_of(tmp_path, zipped) == [TraceRequest(1.0, "a", False, 1)]


def test_operations_may_have_the_names_of_dynamodb(tmp_path: Path) -> None:
    names = ["GetItem", "Query", "BatchGetItem", "PutItem", "updateitem", "TransactWriteItems"]
    found = requests_of(tmp_path, HEADER + "".join(f"1,a,{name},1\n" for name in names))
    assert [request.is_write for request in found] == [False, False, False, True, True, True]


@given(st.lists(st.integers(0, 90), max_size=40))
def test_lines_up_to_ten_seconds_late_are_sorted(
    tmp_path_factory: pytest.TempPathFactory, tenths: list[int]
) -> None:
    """As in the logs of several servers, put together."""
    times = [100 + tenth / 10 for tenth in tenths]
    lines = "".join(f"{time_s},k,write,1\n" for time_s in times)
    found = requests_of(tmp_path_factory.mktemp("late"), HEADER + lines)
    assert [request.time_s for request in found] == sorted(times)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("soon,a,read,1", "time must be seconds or milliseconds since 1970, or ISO 8601"),
        ("-1,a,read,1", "time must be"),
        ("nan,a,read,1", "time must be"),
        ("100,,read,1", "key must not be empty"),
        (f"100,{'k' * 1_025},read,1", "key has 1,025 characters"),
        ("100,a,look,1", "operation must be a read (read, get, gets, query, scan, GetItem, "),
        ("100,a,read,big", "bytes must be a whole number from 0 to 1,048,576, not 'big'"),
        (f"100,a,read,{BYTES_MAX + 1}", "bytes must be"),
        ("100,a,read,-1", "bytes must be"),
        ("100,a,read", "bytes is missing"),
        ("1,a,read,1", "time goes back by 98 s: sort the trace by time"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number_and_field(
    tmp_path: Path, line: str, said: str
) -> None:
    text = f"{HEADER}98,a,read,1\n99,b,write,2\n{line}\n"
    assert refusal_of(tmp_path, text).startswith(f"trace.csv line 4: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the header must name time, key, operation, bytes"),
        ("time,key,op,bytes\n", "it lacks operation"),
        (HEADER.encode() + b"1,\xff,read,1\n", "it is not UTF-8"),
        (HEADER + '1,"a,read,1\n', "it is not CSV"),
        (gzip.compress(HEADER.encode() + b"1,a,read,1\n" * 99)[:-9], "gzip data is cut off"),
        (b"\x1f\x8b" + b"nonsense", "cannot be read"),
    ],
    ids=["empty", "without operations", "not UTF-8", "a quote left open", "cut off", "not gzip"],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert said in refusal_of(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"missing.csv' cannot be read: No such file"):
        list(CsvTrace(tmp_path / "missing.csv").requests())


@pytest.mark.parametrize("weight", [0, 10**7])
def test_a_sample_of_nothing_is_refused(tmp_path: Path, weight: int) -> None:
    with pytest.raises(InvalidSetting, match="sampled must be an int"):
        CsvTrace(tmp_path / "trace.csv", weight)


def test_how_much_is_read_is_told_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEADER + "".join(f"{second},a,read,1\n" for second in range(50_000)))
    trace = CsvTrace(file)
    assert trace.done() == 0
    done = [trace.done() for _ in trace.requests()]
    assert done == sorted(done)
    assert 0 < done[0] < 0.5
    assert trace.done() == 1


TIMES = st.floats(0, 1e9).map(lambda time: round(time, 3))
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=50)


@settings(max_examples=50)
@given(st.lists(st.tuples(TIMES, KEYS, st.booleans(), st.integers(0, BYTES_MAX))))
def test_whatever_was_written_as_csv_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, str, bool, int]]
) -> None:
    requests = [TraceRequest(*row) for row in sorted(rows)]
    lines = [
        '{},"{}",{},{}'.format(
            one.time_s, one.key.replace('"', '""'), "write" if one.is_write else "read", one.size
        )
        for one in requests
    ]
    folder = tmp_path_factory.mktemp("written")
    assert requests_of(folder, HEADER + "\n".join(lines)) == requests
