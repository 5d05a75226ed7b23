"""The shape of code and docs: whole modules instead of fragments, lines that can be read.

A module holds one whole idea. Many small modules mean that a reader opens many files to follow one
request. So most modules are long, and each short one has a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from .test_house_rules import MODULES, functions, name_of

ROOT = Path(__file__).parents[2]
MEDIAN_LINES_MIN = 140
SHORT_LINES = 60
SHORT_MODULES_MAX = 25
CONSTRUCTOR_PARAMETERS_MAX = 6
PROSE_COLUMNS_MAX = 100
OPTIONAL = "only programs with an optional package import it"
SHARED = "several packages use it, and none of them owns it"
SHORT = {
    "__main__.py": "Python wants a file of this name",
    "boto/times.py": "gives a public name to functions of another package",
    "bulk/work/webhooks.py": "the only action that is built in",
    "cluster/slots.py": "pure functions that all modules of its package use",
    "contrib/django/management/commands/heatsink_worker.py": "Django wants a file for each command",
    "contrib/django/setup.py": "its import is what it is for",
    "contrib/django/worker.py": "a worker names it, and imports it in every process",
    "emulator/browsers.py": "a mechanism of its own: CORS",
    "primitives/chance.py": SHARED,
    "primitives/damping.py": SHARED,
    "primitives/nudge.py": SHARED,
    "registry/settings.py": "how the registry stores a setting, without what a setting means",
    "server/api/metrics.py": OPTIONAL,
    "server/adoption/patient.py": "three modules of the same package use it",
    "server/door/metrics.py": OPTIONAL,
    "server/traced_app.py": OPTIONAL,
    "server/tracing.py": OPTIONAL,
    "spread/observed.py": "only clients with hooks use it, so that all others run without it",
    "stores/dynamodb/verify/observed.py": "the shape that all checks of its package share",
    "stores/stores.py": "the interfaces of a store in one object, between stores and clients",
}
JOINS = "joins parts that exist apart from each other, and is made in one place"
LONG_CONSTRUCTORS = {
    "bulk/actions.py:Context": "what a handler sees; tests make one by a function with defaults",
    "bulk/submit.py:Submission": JOINS,
    "bulk/work/consumer.py:Consumer": JOINS,
    "bulk/work/places.py:LimitPlaces": JOINS,
    "bulk/work/pool.py:WorkerPool": JOINS,
    "bulk/work/pump.py:Pump": JOINS,
    "client/heatsink.py:Heatsink": "groups them in a Blueprint; tests pass the few that they need",
    "client/read_side.py:ReadSide": JOINS,
    "cluster/balance.py:Balancer": JOINS,
    "coordinator/coordination.py:Coordination": JOINS,
    "coordinator/workers.py:QueueWatch": JOINS,
    "timelines/timelines.py:Timelines": JOINS,
}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOT_PROSE = re.compile(r"\s*(\||!\[|<|#|\[.*\]: |:::|\(\S+\)=$|- \[.*\]\(\S+\)$)")


def lengths() -> dict[str, int]:
    """The lines of each module that has more than names in it."""
    modules = [module for module in MODULES if module.name != "__init__.py"]
    return {name_of(module): len(module.read_text().splitlines()) for module in modules}


def test_most_modules_hold_a_whole_idea() -> None:
    assert median(lengths().values()) >= MEDIAN_LINES_MIN


def test_every_short_module_has_a_reason() -> None:
    short = {name for name, lines in lengths().items() if lines < SHORT_LINES}
    assert short == SHORT.keys(), "fold it into the module that it serves, or say why it is short"
    assert len(short) <= SHORT_MODULES_MAX


def test_a_constructor_takes_few_parameters() -> None:
    found = set()
    for module in MODULES:
        for node in functions(module):
            arguments = node.args
            count = len(arguments.args) + len(arguments.kwonlyargs) + len(arguments.posonlyargs)
            if node.name == "__init__" and count - 1 > CONSTRUCTOR_PARAMETERS_MAX:
                found.add(f"{name_of(module)}:{class_of(module, node)}")
    assert found == LONG_CONSTRUCTORS.keys(), "group parameters in a settings object"


def class_of(module: Path, method: ast.AST) -> str:
    tree = ast.parse(module.read_text())
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    line = getattr(method, "lineno", 0)
    return next(c.name for c in classes if any(n.lineno == line for n in c.body))


def test_prose_wraps_where_the_code_does() -> None:
    """Tables, pictures, code, headings and lists of links excepted."""
    long = [
        f"{page.relative_to(ROOT)}, line {number}: {line}"
        for page in PAGES
        for number, line in prose(page)
        if len(line) > PROSE_COLUMNS_MAX
    ]
    assert long == []


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbers and texts of lines that are neither code nor a table nor a picture."""
    fence = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark and (not fence or mark[1] == fence):
            fence = "" if fence else mark[1]
        elif not fence and not line.startswith("    ") and not NOT_PROSE.match(line):
            yield number, line
