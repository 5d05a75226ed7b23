"""`./dev`: what it says about a wrong word, and what it does with a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEV = (sys.executable, str(ROOT / "dev"))
END_S = 60
COUNTS_SIGNALS = """
import signal
import sys

seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
signal.pause()
print(len(seen), flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("demmo",), "no command 'demmo'. Did you mean demo?"),
        (("test", "--qick"), "no option --qick: did you mean --quick?"),
        (("test", "--ful"), "no option --ful: did you mean --full?"),
    ],
)
def test_a_wrong_word_is_named_at_once(words: tuple[str, ...], said: str) -> None:
    ran = subprocess.run([*DEV, *words], capture_output=True, text=True, timeout=END_S, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert said in ran.stderr


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="macOS does not say who sends")
def test_a_signal_to_dev_alone_reaches_its_command_once() -> None:
    command = [*DEV, "run", "python", "-c", COUNTS_SIGNALS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dev:
        assert dev.stdout is not None
        assert dev.stdout.readline() == "ready\n"
        dev.send_signal(signal.SIGINT)
        said, _ = dev.communicate(timeout=END_S)
    assert (dev.returncode, said) == (130, "1\n")
