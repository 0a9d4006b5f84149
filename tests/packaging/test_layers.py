"""Layers of imports: no cycles, and one direction between the folders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from core_alone import wing_of

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("backends", "demos", "frontends", "ops", "passes")
OWN = ("cuda", "device", "mlir", "runtime", "triton")  # folders of backends that generate code
# Folder: what it never imports, at any time. What a person runs (demos, commands) imports all.
FORBIDDEN = {
    "stack.ir": ("stack.rewrite", "stack.run", "stack.explore", "stack.measure", "stack.tune"),
    "stack.rewrite": ("stack.run.compile", "stack.explore", "stack.measure", "stack.tune"),
    "stack.passes": ("stack.backends", "stack.frontends", "stack.ops", "stack.demos"),
    "stack.backends": ("stack.passes", "stack.ops", "stack.demos"),
    "stack.frontends": ("stack.passes", "stack.backends", "stack.ops", "stack.demos"),
    "stack.ops": ("stack.passes", "stack.backends", "stack.frontends", "stack.demos"),
}
# Files of a circle of imports, if those inside of functions and those for types count.
MOST_IN_A_CIRCLE, FEW_IN_A_CIRCLE, MOST_LARGE_CIRCLES = 5, 3, 1
# The package of a framework loads its rooms. These files of rooms read its `FRONTEND` nevertheless.
READ_FRONTEND = {
    "stack.frontends.jax.compile.calls",
    "stack.frontends.jax.compile.training_step",
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its name; the links inside of `stack` are not followed."""
    found: dict[str, Path] = {}
    for top in ("stack", *LINKED):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[0] == "stack" and parts[1] in LINKED:
                continue
            name = ".".join(parts if top == "stack" else ("stack", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def imports(module: str, at_start: bool) -> frozenset[str]:
    """The project's modules that a module imports: when it is loaded, or at any time."""
    return frozenset(_imports(module, at_start))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(module: str, at_start: bool) -> Iterator[str]:
    path = modules()[module]
    tree = tree_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in tree.body if at_start else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(filter(None, [*(above if node.level else ()), node.module]))
            targets = [f"{base}.{a.name}" for a in node.names]
            yield from (t if t in modules() else base for t in targets if base in modules())
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules())


def folder(module: str) -> str:
    """The folder of a module: `stack.passes.rules` of what is in there."""
    is_folder = modules()[module].name == "__init__.py"
    return module if is_folder else module.rpartition(".")[0]


def graph() -> dict[str, set[str]]:
    return {m: set(imports(m, at_start=True)) - {m} for m in modules()}


def circle(edges: dict[str, set[str]]) -> list[str]:
    """Some circle, if there is one."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert not circle(graph())


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Sets of files of which each reaches each other, the largest first."""
    before = {file: set[str]() for file in edges}
    for file, targets in edges.items():
        for target in targets:
            before[target].add(file)
    done = set[str]()
    order = [file for start in edges for file in _last_to_first(start, edges, done)]
    done.clear()
    found = [_last_to_first(start, before, done) for start in reversed(order)]
    return sorted((sorted(c) for c in found if len(c) > 1), key=len, reverse=True)


def _last_to_first(start: str, edges: dict[str, set[str]], done: set[str]) -> list[str]:
    """The files that a file reaches and that are not done yet, each after those that it reaches."""
    found: list[str] = []
    pending = [(start, False)]
    while pending:
        file, is_left = pending.pop()
        if is_left:
            found.append(file)
        elif file not in done:
            done.add(file)
            pending += [(file, True), *((target, False) for target in edges[file])]
    return found


def test_circles_of_late_and_typing_imports_are_small() -> None:
    """All imports count: those in functions, those for types only, relative ones."""
    found = circles({m: set(imports(m, at_start=False)) - {m} for m in modules()})
    assert all(len(c) <= MOST_IN_A_CIRCLE for c in found), found[0]
    large = [c for c in found if len(c) > FEW_IN_A_CIRCLE]
    assert len(large) <= MOST_LARGE_CIRCLES, large


def test_a_circle_of_late_imports_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a", "e"}}
    assert circles(edges) == [["a", "b", "c"], ["d", "e"]]


def test_no_two_folders_import_each_other() -> None:
    between: dict[str, set[str]] = {}
    for module, targets in graph().items():
        own = folder(module)
        between.setdefault(own, set()).update(folder(t) for t in targets)
    pairs = [
        (a, b)
        for a, targets in between.items()
        for b in targets
        # a folder knows what is in it
        if a < b and a in between[b] and not b.startswith(f"{a}.")
    ]
    assert not pairs


def is_in(module: str, folders: tuple[str, ...]) -> bool:
    return any(module == f or module.startswith(f"{f}.") for f in folders)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_arrows_run_one_way(name: str) -> None:
    wrong = {
        (module, target)
        for module in modules()
        if is_in(module, (name,))
        for target in imports(module, at_start=False)
        if is_in(target, FORBIDDEN[name])
    }
    assert not wrong


def test_the_core_names_nobody_who_is_found_by_entry_point() -> None:
    plugged = tuple(f"stack.{name}" for name in LINKED)
    wrong = {
        (module, target)
        for module in modules()
        if not is_in(module, plugged)
        for target in imports(module, at_start=False)
        if is_in(target, plugged)
    }
    assert not wrong


def test_the_core_imports_no_wing() -> None:
    """Wings are found by entry point; see `stack.wings`. `stack` names functions of wings for type
    checkers only, and loads them by entry point.
    """

    def wing(module: str) -> str:
        return wing_of(modules()[module].relative_to(ROOT).as_posix())

    wrong = {
        (module, target)
        for module in modules()
        if wing(module) == "core"
        for target in imports(module, at_start=module == "stack")
        if wing(target) != "core"
    }
    assert not wrong


def test_own_backends_know_no_peer() -> None:
    own = tuple(f"stack.backends.{name}" for name in OWN)
    peers = tuple(m for m in modules() if is_in(m, ("stack.backends",)) and not is_in(m, own))
    wrong = {
        (module, target)
        for module in modules()
        if is_in(module, own)
        for target in imports(module, at_start=False)
        if target in peers and target != "stack.backends"
    }
    assert not wrong


PACKAGES = ("stack.frontends", "stack.frontends.torch", "stack.frontends.jax")
ROOMS = sorted(
    name
    for name, path in modules().items()
    if is_in(name, PACKAGES) and name not in PACKAGES and path.name == "__init__.py"
)


def of_room(room: str) -> set[tuple[str, str]]:
    """Each import of another part of the frontends in a room: file and module, at any time."""
    return {
        (module, target)
        for module in modules()
        if is_in(module, (room,))
        for target in imports(module, at_start=False)
        if is_in(target, PACKAGES) and not is_in(target, (room,))
    }


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_frontends_imports_what_its_docstring_says(room: str) -> None:
    text = ast.get_docstring(tree_of(modules()[room])) or ""
    sentence = re.search(r"Imports (no|the)\b[^.]*", text)
    assert sentence, "says nothing about imports"
    beside = room.rpartition(".")[0]
    names = re.findall(r"`(\w+)`", sentence[0])
    near = {name for name in names if f"{beside}.{name}" in ROOMS}
    allowed = {f"{beside if name in near else PACKAGES[0]}.{name}" for name in names}
    found = {folder(target) for _, target in of_room(room)} - {*PACKAGES}
    assert found == allowed


def test_rooms_of_frontends_import_each_other_in_no_circle() -> None:
    """Imports inside of functions count."""
    assert not circle({r: {folder(t) for _, t in of_room(r)} - {*PACKAGES} for r in ROOMS})


def test_few_files_of_rooms_read_the_frontend_above_them() -> None:
    found = {m for r in ROOMS for m, target in of_room(r) if target in PACKAGES[1:]}
    assert found == READ_FRONTEND


def test_every_room_of_frontends_is_in_the_readme() -> None:
    text = (ROOT / "frontends" / "README.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)
    rooms = [room.removeprefix("stack.frontends.").replace(".", "/") for room in ROOMS]
    assert sorted(told) == rooms
