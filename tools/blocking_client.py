"""Write `client/blocking_calls.py`, the client without asyncio, from the asynchronous classes.

Every public call gets a twin with the same arguments, docstring and result that blocks. So the two
clients cannot drift apart, and type checkers see both.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "heatsink"
TARGET = PACKAGE / "client" / "blocking_calls.py"
SOURCES = {
    "Log": "spread/log.py",
    "BufferedCounters": "spread/counters.py",
    "Counters": "spread/counters.py",
    "Timelines": "timelines/timelines.py",
    "Bulk": "bulk/bulk.py",
    "Consumer": "bulk/work/consumer.py",
    "DeploymentSettings": "client/deployment.py",
    "Schedules": "bulk/schedules.py",
    "Heatsink": "client/heatsink.py",
}
NAMES = {"Heatsink": "BlockingCalls"}
INTERNAL = {
    "Timelines": {"adopt"},
    "DeploymentSettings": {"now", "controls", "checked", "found", "warn_of_differences"},
    "Bulk": {"close", "adopt", "is_closed", "change", "tell_done", "trace_of", "next_action"},
    "Consumer": {"run", "cut_off"},  # run is written by hand: it also ends well on Ctrl-C
    "Heatsink": {
        *("close", "log", "counters", "reads", "bulk", "timelines", "settings", "worker"),
        "schedules",
        *("cluster_watch", "parts", "queue_watch"),
    },
}
HEAD = '''"""The calls of the client without asyncio. Written by `./dev generate`: do not edit.

Each class has the calls of its asynchronous twin, and they block.
"""

from __future__ import annotations

'''
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    TARGET.write_text(source())


def source() -> str:
    """The text of the module, formatted."""
    bodies, imports = [], {"from heatsink.client.loop_thread import LoopThread"}
    for name, path in SOURCES.items():
        module = ast.parse((PACKAGE / path).read_text())
        twin = list(_twin(module, name))
        bodies.append("\n".join(twin))
        imports |= set(_imports(module, path, "\n".join(twin)))
    text = HEAD + "\n".join(sorted(imports)) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"
    text = _ruff(text, "check", "--select", "I,F401", "--fix", "--exit-zero", "--quiet")
    return _ruff(text, "format", "--quiet")


def _ruff(text: str, *arguments: str) -> str:
    ruff = str(Path(sys.executable).with_name("ruff"))
    command = [ruff, *arguments, "--stdin-filename", str(TARGET), "-"]
    answer = subprocess.run(  # noqa: S603
        command, input=text, capture_output=True, text=True, check=True
    )
    return answer.stdout


def _twin(module: ast.Module, name: str) -> Iterator[str]:
    (found,) = (
        each for each in module.body if isinstance(each, ast.ClassDef) and each.name == name
    )
    yield f"class {NAMES.get(name, 'Blocking' + name)}:"
    yield f'    """{_plain(ast.get_docstring(found, clean=False) or "")}"""\n'
    yield f"    def __init__(self, loop: LoopThread, part: {name}) -> None:"
    yield "        self._loop = loop"
    yield "        self._part = part\n"
    methods = {each.name: each for each in found.body if isinstance(each, Function)}
    if "__aenter__" in methods and name not in NAMES:
        yield f"    def __enter__(self) -> Blocking{name}:"
        yield "        self._loop.call(self._part.__aenter__)"
        yield "        return self\n"
        yield "    def __exit__(self, *details: object) -> None:"
        yield "        if not self._loop.is_forked:  # the parent process closes it"
        yield "            self._loop.call(self._part.__aexit__, *details)\n"
    for method in methods.values():
        if not method.name.startswith("_") and method.name not in INTERNAL.get(name, ()):
            yield _method(method)


def _method(method: Function) -> str:
    result = ast.unparse(method.returns) if method.returns else "None"
    is_property = any(ast.unparse(each) == "property" for each in method.decorator_list)
    lines = ["    @property"] if is_property else []
    shown = result.replace("AsyncIterator[", "Iterator[").replace("asyncio.Future", "Future")
    shown = re.sub(rf"^({'|'.join(SOURCES)})$", r"Blocking\1", shown)
    lines.append(f"    def {method.name}({_parameters(method)}) -> {shown}:")
    if docstring := ast.get_docstring(method, clean=False):
        lines.append(f'        """{_plain(docstring)}"""')
    lines.append(f"        return {_call(method, result, is_property)}\n")
    return "\n".join(lines)


def _parameters(method: Function) -> str:
    """As they are; what may be an asynchronous iterable may only be a plain one here."""
    return re.sub(
        r"(Iterable\[.*?\]) \| AsyncIterable\[\S+(?: \S+)?\]", r"\1", ast.unparse(method.args)
    )


def _call(method: Function, result: str, is_property: bool) -> str:
    part, arguments = f"self._part.{method.name}", _arguments(method)
    if is_property:
        return part
    drawn = [each.arg for each in method.args.args if "AsyncIterable" in _annotation(each)]
    if drawn:
        inner = ", ".join(arguments).replace(drawn[0], "drawn", 1)
        call = part if arguments == drawn else f"lambda drawn: {part}({inner})"
        return f"self._loop.draw({call}, {drawn[0]})"
    if result.startswith("AsyncIterator["):
        return f"self._loop.iterate({part}({', '.join(arguments)}))"
    if result.startswith("asyncio.Future"):
        return f"self._loop.start({', '.join([part, *arguments])})"
    verb = "call" if isinstance(method, ast.AsyncFunctionDef) else "run"
    call = f"self._loop.{verb}({', '.join([part, *arguments])})"
    return f"Blocking{result}(self._loop, {call})" if result in SOURCES else call


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation else ""


def _arguments(method: Function) -> list[str]:
    plain = [each.arg for each in method.args.args if each.arg != "self"]
    named = [f"{each.arg}={each.arg}" for each in method.args.kwonlyargs]
    rest = [f"**{method.args.kwarg.arg}"] if method.args.kwarg else []
    return plain + named + rest


def _plain(docstring: str) -> str:
    """The docstring without asyncio."""
    text = docstring.replace("async with", "with").replace("async for", "for")
    text = text.replace("heatsink.connect(", "heatsink.connect_sync(")
    return re.sub(r"\bawait ", "", text)


def _imports(module: ast.Module, path: str, text: str) -> Iterator[str]:
    """The imports of the names that the twin's text uses."""
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    package = ["heatsink", *Path(path).parent.parts]
    yield "from collections.abc import Iterator"
    yield "from concurrent.futures import Future"
    for statement in module.body:
        if isinstance(statement, ast.ImportFrom):
            up = package[: len(package) - statement.level + 1] if statement.level else []
            origin = ".".join([*up, *([statement.module] if statement.module else [])])
            for alias in statement.names:
                if (alias.asname or alias.name) in words and origin != "__future__":
                    yield f"from {origin} import {ast.unparse(alias)}"
        for name in _defined(statement):
            if name in words:
                yield f"from {'.'.join([*package, Path(path).stem])} import {name}"


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [each.id for each in statement.targets if isinstance(each, ast.Name)]
    return []


if __name__ == "__main__":
    main()
