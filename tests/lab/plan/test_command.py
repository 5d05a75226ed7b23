from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from heatsink.cli import main
from heatsink.lab.plan.findings import COST_MEANS

SMALL = ("--keys", "100", "--skew", "1.2", "--peak", "50", "--hours", "0.05")


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def trace_of(folder: Path, lines: str) -> Path:
    file = folder / "trace.csv"
    file.write_text(f"time,key,operation,bytes\n{lines}")
    return file


def test_a_trace_gives_tables_advice_and_a_page(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "".join(f"{n / 2000},hot,write,100\n" for n in range(10_000)))
    out = tmp_path / "plan.html"
    result = plan(str(trace), "--out", str(out))
    assert result.exit_code == 0, result.output
    for title in ("Throttles", "Buckets and partitions", "Cost of a month"):
        assert title in result.output
    assert "Recommended: spread, which cures it." in " ".join(result.output.split())
    page = out.read_text()
    assert "<h1>Plan of a table: trace.csv</h1>" in page
    assert f"heatsink plan {trace}" in page
    assert "us-east-1 as of 1 November 2024" in page
    assert not re.search(r"(src|href)=|@import|url\(", page.partition("<script")[0])


def test_the_cost_per_served_request_can_be_checked_by_hand(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "".join(f"{n / 2000},hot,write,9000\n" for n in range(10_000)))
    chosen = ("--remedy", "nothing", "--remedy", "spread")
    found = json.loads(plan(str(trace), "--json", *chosen).stdout)
    nothing, spread = found["outcomes"]
    month = 30 * 86_400 / (found["survey"]["end_s"] - found["survey"]["start_s"])
    for each in (nothing, spread):
        served = each["requests"] - each["throttled"]
        assert each["cost"]["plain"] == pytest.approx(served * 9 * 0.625e-6 * month)
        assert each["cost_factor"] == each["cost"]["on_demand"] / each["cost"]["plain"]
    assert nothing["cost_factor"] == 1
    assert nothing["throttled"] > spread["throttled"]
    out = tmp_path / "plan.html"
    said = " ".join(plan(str(trace), "--out", str(out), *chosen).output.split())
    without = f"would cost ${spread['cost']['plain']:,.0f} without a remedy if the table served"
    for text in (said, out.read_text()):
        assert without in text
        assert COST_MEANS in text


def test_answers_stand_below_their_questions_and_apart_from_each_other(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "".join(f"{n / 50},key-{n % 9},write,100\n" for n in range(1_000)))
    result = plan(str(trace), "--out", str(tmp_path / "plan.html"), "--remedy", "nothing")
    lines = [line.strip() for line in result.output.splitlines()]
    assert "?:" not in result.output
    for question in ("What should I do?", "What will it cost?", "What stays?"):
        at = lines.index(question)
        assert lines[at - 1] == ""
        assert lines[at + 1]
    assert lines[lines.index("What should I do?") + 1] == "Nothing"
    short = "The trace covers only 20 s: a month is an extrapolation from it."
    assert short in lines
    assert f"<p>{short}</p>" in (tmp_path / "plan.html").read_text()


def test_json_is_all_that_is_printed_if_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = plan(*SMALL, "--json", "--remedy", "nothing", "--remedy", "all three")
    assert not list(tmp_path.iterdir())
    found = json.loads(result.output)
    assert [each["remedy"]["name"] for each in found["outcomes"]] == ["nothing", "all three"]
    assert found["outcomes"][0]["requests"] == found["survey"]["requests"] > 0
    assert 0 <= found["outcomes"][0]["throttled_share"] <= 1
    assert found["advice"]


def test_a_sampled_trace_counts_for_more(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "1,a,write,100\n2,b,read,100\n")
    result = plan(str(trace), "--sampled", "7", "--json", "--remedy", "nothing")
    assert json.loads(result.output)["outcomes"][0]["requests"] == 14


def test_a_published_shape_is_replayed_by_its_name() -> None:
    result = plan("--shape", "twitter-8", "--requests", "2000", "--json", "--remedy", "nothing")
    found = json.loads(result.output)
    assert found["name"] == "twitter-8"
    assert found["survey"]["requests"] == pytest.approx(2_110 * 86_400, rel=0.01)


def test_the_command_on_the_page_gives_the_same_page(tmp_path: Path) -> None:
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    first = plan(*SMALL, "--remedy", "spread + absorb", "--by-id", "--out", str(pages[0]))
    assert first.exit_code == 0, first.output
    written = re.search(r"heatsink plan ([^<]*)", pages[0].read_text())
    assert written is not None
    words = written[1].replace("&#x27;spread + absorb&#x27;", "spread_+_absorb").split()
    plan(*(word.replace("_", " ") for word in words), "--out", str(pages[1]))
    assert pages[0].read_text() == pages[1].read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.csv",), "trace 'nowhere.csv' cannot be read: No such file or directory"),
        (("nowhere.csv", "--keys", "5"), "--keys cannot be used here: the load comes from TRACE"),
        (("nowhere.csv", "--requests", "5000"), "--requests cannot be used here"),
        (("--sampled", "5"), "--sampled cannot be used here"),
        (("--shape", "twitter-8", "--skew", "1"), "--skew cannot be used here: --shape twitter-8"),
        ((*SMALL, "--write-capacity", "5"), "--write-capacity and --read-capacity go together"),
        ((*SMALL, "--fresh-for", "9"), "--stale-for must be at least --fresh-for"),
        ((*SMALL, "--out", "/nowhere/plan.html"), "cannot be written"),
        (
            ("--peak", "1e9", "--hours", "0.01", "--requests", "1000"),
            "partitions, but a plan can have at most 10,000. Plan a part of the load",
        ),
        (
            (*SMALL, "--write-capacity", "1e9", "--read-capacity", "1"),
            "keep one key in 101 of TRACE",
        ),
    ],
)
def test_what_cannot_be_is_an_error_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    result = plan(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_page_that_cannot_be_written_is_found_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(*_: object) -> None:
        pytest.fail("it was replayed")

    monkeypatch.setattr("heatsink.lab.plan.command.replay", work)
    result = plan(*SMALL, "--out", "/nowhere/plan.html")
    assert result.output == (
        "heatsink: --out '/nowhere/plan.html' cannot be written: No such file or directory\n"
    )


@pytest.mark.parametrize("wrong", [("--skew", "nan"), ("--peak", "0"), ("--remedy", "hope")])
def test_a_wrong_value_is_refused_by_its_flag(wrong: tuple[str, str]) -> None:
    result = plan(*wrong)
    assert result.exit_code == 2
    assert wrong[0] in result.output


def test_settings_may_come_from_a_file(tmp_path: Path) -> None:
    settings, out = tmp_path / "settings.toml", tmp_path / "plan.html"
    settings.write_text("[plan]\nkeys = 100\npeak = 50\nhours = 0.05\nrequests = 2000\n")
    result = plan("--config", str(settings), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "heatsink plan --keys 100" in out.read_text()


def test_a_file_that_is_no_plan_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.html").write_text("kept")
    result = plan(*SMALL, "--remedy", "nothing")
    assert result.exit_code == 2
    assert "plan.html is not a page of `heatsink plan`, and would be replaced" in result.output
    assert (tmp_path / "plan.html").read_text() == "kept"
    result = plan(*SMALL, "--remedy", "nothing", "--out", "plan.html")
    assert "Replaced the page plan.html\n" in result.output


def test_the_newest_plan_has_the_same_name_and_the_one_before_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan(*SMALL, "--remedy", "nothing")
    assert "Replaced the page plan.html\n" in plan(*SMALL, "--remedy", "nothing").output
    result = plan(*SMALL, "--remedy", "spread")
    assert "The page of the plan before is plan-before.html now\n" in result.output
    assert "--remedy spread</code>" in (tmp_path / "plan.html").read_text()
    assert "--remedy nothing</code>" in (tmp_path / "plan-before.html").read_text()
