"""Writes a copy of the tree without the wings, ready to install.

    python tests/packaging/core_alone.py DIR

`--lines` prints the files and lines of the core and of each wing instead.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("backends", "demos", "frontends", "ops", "passes")
FOLDERS = ("stack", *LINKED)
# What each wing consists of: folders, and files beside those of the core.
WINGS = {
    "mesh": (
        "stack/mesh",
        "stack/commands/dump_mesh.py",
        "frontends/jax/sharding",
        "stack/sim",
        "stack/explore/sharding.py",
        "stack/run/mesh.py",
        "stack/run/gradients.py",
        "stack/run/partitioner.py",
        "stack/run/ranks.py",
        "frontends/torch/distributed",
        "backends/partition*.py",
        "passes/sharding",
        "passes/unmerge.py",
    ),
    "bench": (
        "stack/measure",
        "stack/tune",
        "stack/commands/bench.py",
        "stack/commands/calibrate.py",
        "stack/commands/compare.py",
        "stack/commands/opt_against.py",
        "stack/commands/run_race.py",
        "backends/[!_]*.py",  # a peer is one file, a backend of ours a folder
    ),
    "calls": (
        "stack/calls",
        "stack/commands/dump_training.py",
        "frontends/torch/compile",
        "frontends/torch/program",
        "frontends/torch/training",
        "frontends/jax/compile",
        "frontends/jax/replay",
        "backends/calls",
        "passes/exchange.py",
        "passes/freeze.py",
        "passes/partition.py",
        "passes/training",
    ),
    "complex": (
        "frontends/arithmetic/complex_functions.py",
        "frontends/torch/complex",
        "frontends/jax/complex",
    ),
    "course": ("demos", "stack/mini.py"),
    "files": ("frontends/files",),
    "functions": (
        "frontends/torch/decompositions",
        "frontends/torch/lowerings",
    ),
    "ops": (
        "ops",
        "stack/hosted",
        "frontends/torch/hosted",
        "frontends/jax/hosted",
        "passes/hosted.py",
        "passes/recurrences.py",
        "passes/quantize.py",
        "passes/quantizing",
    ),
    "report": ("stack/report", "stack/commands/report.py"),
    "faults": ("stack/faults", "stack/commands/faults.py"),
    "naming": ("stack/naming",),
    "testing": ("stack/testing", "stack/commands/check_rule.py", "stack/commands/new.py"),
}


@cache
def wing_of(path: str) -> str:
    """The wing that a file or folder belongs to; "core" if to none."""
    for wing, patterns in WINGS.items():
        for pattern in patterns:
            if path.startswith(f"{pattern}/") or (
                fnmatch(path, pattern) and path.count("/") == pattern.count("/")
            ):
                return wing
    return "mesh" if _shards(path) else "core"


def _shards(path: str) -> bool:
    """True for a pass that uses the parts in `passes/sharding`."""
    file = ROOT / path
    is_pass = fnmatch(path, "passes/*.py") and file.is_file()
    return is_pass and "from stack.passes.sharding" in file.read_text(encoding="utf-8")


def files() -> Iterator[str]:
    """Every Python file of the product, by its path from the root."""
    for top in FOLDERS:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if parts[0] != "stack" or parts[1] not in LINKED:
                yield "/".join(parts)


def write_core(target: Path, without: tuple[str, ...] = tuple(WINGS)) -> Path:
    """Copies what an install needs, without the files and entry points of some wings."""
    target.mkdir(parents=True)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)

    def absent(folder: str, names: list[str]) -> list[str]:
        at = Path(folder).relative_to(ROOT)
        links = [n for n in names if str(at) == "stack" and wing_of(n) in without]
        left_out = [n for n in names if wing_of((at / n).as_posix()) in without]
        return [*left_out, *links, *(n for n in names if n == "__pycache__")]

    for name in FOLDERS:
        if wing_of(name) not in without:
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=absent)
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not any(_wing(m) in without for m in _modules(line))]
    (target / "pyproject.toml").write_text("\n".join(kept) + "\n", encoding="utf-8")
    return target


def _modules(line: str) -> list[str]:
    """Modules of ours that a line of pyproject.toml names in quotes."""
    if line.startswith("["):  # the head of a table
        return []
    return re.findall(r'"(stack(?:\.\w+)+)(?::\w+)?"', line)


def _wing(module: str) -> str:
    """The wing of a module or package."""
    parts = module.split(".")
    path = "/".join(parts[1:] if parts[1] in LINKED else parts)
    return wing_of(path if (ROOT / path).is_dir() else f"{path}.py")


def table() -> str:
    """Files and lines of the core, of each wing, and of the middle of the core."""
    count, lines = Counter[str](), Counter[str]()
    middle = tuple(f"stack/{n}/" for n in ("ir", "rewrite", "run", "schedule", "target"))
    for path in files():
        size = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        owners = [wing_of(path)]
        if path.startswith(middle) and owners == ["core"]:
            owners.append("core: ir + rewrite + run + schedule + target")
        for owner in owners:
            count[owner] += 1
            lines[owner] += size
    rows = [f"| {name} | {count[name]} | {lines[name]:,} |" for name in sorted(count)]
    return "\n".join(["| part | files | lines |", "|---|---|---|", *rows])


if __name__ == "__main__":
    if sys.argv[1:] == ["--lines"]:
        print(table())
    else:
        print(write_core(Path(sys.argv[1])))
