"""Taste, checked by machine: sizes, names, who may ask for the time, what policies may import."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import heatsink

SOURCE = Path(heatsink.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
FOLDERS = sorted({module.parent for module in MODULES})

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600
PROTOCOL_METHODS_MAX = 8
PARAMETERS_MAX = 8
SAME_NAME_MAX = 2

GENERATED = "do not edit"  # what such a module says of itself: nobody reads it from top to bottom
BANNED_NAMES = {"utils", "util", "common", "base", "helpers", "manager", "misc"}
TIME_CALLS = {"time.time", "time.monotonic", "time.sleep", "asyncio.sleep", "datetime.now"}
TIME_KEEPERS = {"clock.py", "testing"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
FOREIGN_ERRORS = {"ValueError", "TypeError", "RuntimeError", "OverflowError", "Exception"}
Rule = Callable[[Path], Iterator[str]]
"""Yields what breaks a rule in a module."""
IMPURE = {"asyncio", "time", "random", "os", "logging", "datetime", "socket", "threading"}


def name_of(module: Path) -> str:
    return str(module.relative_to(SOURCE))


@cache
def nodes(module: Path) -> list[ast.AST]:
    """All nodes of its tree, the tree itself first: several rules look at each."""
    return list(ast.walk(ast.parse(module.read_text())))


def functions(module: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes(module) if isinstance(node, FUNCTIONS))


def imported(module: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(rule: Rule) -> list[str]:
    """What breaks a rule, in all modules: a test for each module would be two thousand tests."""
    return [f"{name_of(module)}: {fault}" for module in MODULES for fault in rule(module)]


def too_long(module: Path) -> Iterator[str]:
    tree, lines = nodes(module)[0], len(module.read_text().splitlines())
    assert isinstance(tree, ast.Module)
    docstring = ast.get_docstring(tree) or ""
    if GENERATED not in docstring and lines > MODULE_LINES_MAX:
        yield f"{lines} lines"
    if lines > 1 and not docstring:
        yield "say in a docstring what this module is for"


def test_a_module_is_short_and_explains_itself() -> None:
    assert faults(too_long) == []


def too_much_to_read(module: Path) -> Iterator[str]:
    for function in functions(module):
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{function.name} has {lines} lines"
        arguments = function.args
        count = len(arguments.args) + len(arguments.kwonlyargs) + len(arguments.posonlyargs)
        count -= arguments.args[:1] != [] and arguments.args[0].arg == "self"
        if count > PARAMETERS_MAX:
            yield f"{function.name} has {count} parameters"


def test_a_function_is_short_and_takes_few_parameters() -> None:
    assert faults(too_much_to_read) == []


def wide_protocols(module: Path) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.ClassDef) and any(dotted(b) == "Protocol" for b in node.bases):
            methods = [n for n in node.body if isinstance(n, FUNCTIONS)]
            if len(methods) > PROTOCOL_METHODS_MAX:
                yield f"{node.name} has {len(methods)} methods"


def test_a_protocol_is_narrow() -> None:
    assert faults(wide_protocols) == []


def questions_for_the_time(module: Path) -> Iterator[str]:
    if TIME_KEEPERS & set(module.relative_to(SOURCE).parts):
        return
    for node in nodes(module):
        if isinstance(node, ast.Attribute) and dotted(node) in TIME_CALLS:
            yield f"line {node.lineno}: take a Clock instead"


def test_only_the_clock_asks_what_time_it_is() -> None:
    assert faults(questions_for_the_time) == []


def looks_at_the_environment(module: Path) -> Iterator[str]:
    if module == SOURCE / "cli.py":
        return
    for node in nodes(module):
        if isinstance(node, ast.Attribute) and dotted(node) in {"os.environ", "os.getenv"}:
            yield f"line {node.lineno}: take a setting instead"


def test_only_settings_and_the_entry_point_read_the_environment() -> None:
    assert faults(looks_at_the_environment) == []


def test_a_folder_has_files_with_telling_names() -> None:
    for folder in FOLDERS:
        files = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert not {file.stem for file in files} & BANNED_NAMES, name_of(folder)
        assert folder.name not in BANNED_NAMES


@pytest.mark.parametrize("policy", sorted(SOURCE.rglob("policy.py")), ids=name_of)
def test_a_policy_is_deterministic(policy: Path) -> None:
    """No clock, no chance, no I/O: not in the policy, nor in what it imports from us."""
    seen, waiting = set(), [policy]
    while waiting:
        module = waiting.pop()
        seen.add(module)
        found = imported(module) & IMPURE
        assert not found, f"{name_of(module)} imports {found}"
        waiting += [found for found in _our_modules(module) if found not in seen]


def _our_modules(module: Path) -> Iterator[Path]:
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = node.module.removeprefix("heatsink.").split(".")
            folder = module.parent if node.level == 1 else SOURCE
            path = folder.joinpath(*names).with_suffix(".py")
            if path.exists():
                yield path


def test_there_are_no_import_cycles() -> None:
    edges = {module: set(_our_modules(module)) for module in MODULES}
    done: set[Path] = set()

    def visit(module: Path, path: tuple[Path, ...]) -> None:
        assert module not in path, " → ".join(map(name_of, [*path, module]))
        if module not in done:
            for other in edges[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def foreign_errors(module: Path) -> Iterator[str]:
    if "testing" in module.parts:
        return
    for node in nodes(module):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = dotted(node.exc.func)
            if name in FOREIGN_ERRORS:
                yield f"line {node.lineno} raises {name}"


def test_errors_are_ours() -> None:
    """What a caller may see derives from HeatsinkError: no bare ValueError or RuntimeError."""
    assert faults(foreign_errors) == []


def test_a_class_name_has_few_meanings() -> None:
    """Two classes of packages far apart may share a short name. A third one needs another name."""
    found = Counter(
        node.name for module in MODULES for node in nodes(module) if isinstance(node, ast.ClassDef)
    )
    assert {name: count for name, count in found.items() if count > SAME_NAME_MAX} == {}
