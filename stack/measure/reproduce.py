"""Write scripts that reproduce a peer's failure without our compiler.

The program's source is copied to `programs/` next to the script, without imports of our code. A
peer that replays our function (`xla/ir`) gets no script, since that program is ours.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.measure.suite import Case
from stack.run.specs import parse_backends

FOLDER = "programs"
# only modules that define programs are copied; a program that imports other modules gets no script
_OURS = re.compile(r"\bstack\.(?:demos|measure\.gpu_program)\b")
_COPIED = re.compile(r"\bstack\.demos(?:\.(\w+))?|\bstack\.measure\.(gpu_program)\b")
_FOREIGN = re.compile(
    r"^(?:from|import) stack\b(?!\.demos\b|\.measure\.gpu_program\b)", re.MULTILINE
)
_IMPORTED = re.compile(r"^\s*from (stack\.[\w.]+) import", re.MULTILINE)
_NAMED = re.compile(r"^\s*from stack\.demos import ([\w, ]+)$", re.MULTILINE)

HEAD = '''"""{title}: {system} fails.

{problem}

Seen with {versions}; run it as `python {name}`.
"""

from {folder}.{module} import {factory}

made = {factory}(**{options!r})
fn, args = (made.fn, made.args) if hasattr(made, "fn") else made
'''
TORCH = """
import torch

compiled = torch.compile(fn, mode={mode!r}, dynamic=False)


def run(call):
    if {train!r}:
        wanted = [p for p in fn.parameters() if p.requires_grad]
        found = torch.autograd.grad(call(*args), wanted, allow_unused=True)
    else:
        with torch.no_grad():
            found = call(*args)
    leaves = torch.utils._pytree.tree_leaves(found)
    return [x.detach().double() for x in leaves if isinstance(x, torch.Tensor)]


for number, (a, b) in enumerate(zip(run(fn), run(compiled))):
    off, most = (a - b).abs().max(), a.abs().max()
    print(f"result {{number}}: largest difference {{off:.3g}} of {{most:.3g}}")
"""
JAX = """
import jax
import jax.numpy as jnp

leaves = zip(jax.tree.leaves(fn(*args)), jax.tree.leaves(jax.jit(fn)(*args)))
for number, (a, b) in enumerate(leaves):
    off, most = jnp.abs(a - b).max(), jnp.abs(a).max()
    print(f"result {number}: largest difference {off:.3g} of {most:.3g}")
"""


@dataclass(frozen=True)
class Failure:
    """A system that failed on a case, or whose results were wrong."""

    case: Case
    system: str
    problem: str


def write_reproducers(
    failures: Sequence[Failure], folder: Path, versions: dict[str, str]
) -> list[Path]:
    """Writes a script for each failing peer that can have one; returns their paths."""
    known = ", ".join(f"{k} {v}" for k, v in versions.items() if k in ("python", "torch", "jax"))
    written: list[Path] = []
    for failure in failures:
        text = _script(failure, known)
        if text is None or not _copy_programs(failure.case, folder):
            continue
        path = folder / _name(failure)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _name(failure: Failure) -> str:
    words = f"{failure.case.row} {failure.case.title} {failure.system}"
    return re.sub(r"\W+", "-", words).strip("-") + ".py"


def _script(failure: Failure, versions: str) -> str | None:
    """Returns the text of a script that repeats a failure of Inductor or XLA without our compiler.

    Returns None for other systems, and for a failure on our function instead of the user's program.
    """
    name, _, via = failure.system.partition("/")
    peers = [] if name.startswith("stack-") or via == "ir" else _peers(name)
    if len(peers) != 1 or peers[0].backend not in ("inductor", "xla"):
        return None
    case = failure.case
    module, _, factory = case.spec.partition(":")
    options: dict[str, Any] = dict(case.options)
    framework = "torch" if peers[0].backend == "inductor" else "jax"
    if "frontend" in _parameters(case.spec):
        options["frontend"] = framework
    head = HEAD.format(
        title=f"{case.row} {case.title}",
        system=failure.system,
        problem=failure.problem,
        versions=versions,
        name=_name(failure),
        folder=FOLDER,
        module=module.rpartition(".")[2],
        factory=factory,
        options=options,
    )
    if framework == "jax":
        return head + JAX
    train = bool(options.get("train") or options.get("mode") in ("train", "backward"))
    return head + TORCH.format(mode=peers[0].options.get("mode"), train=train)


def _peers(name: str) -> list[Any]:
    try:
        return list(parse_backends(name))
    except Exception:  # a rival, hand-written for its case
        return []


def _parameters(spec: str) -> Sequence[str]:
    module, _, name = spec.partition(":")
    return list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)


def _copy_programs(case: Case, folder: Path) -> bool:
    """Copies the module of a case, and the demos that it imports, to `folder`.

    Returns False, and copies nothing, if one of them imports other modules of ours.
    """
    pending, seen = [case.spec.partition(":")[0]], dict[str, str]()
    while pending:
        name = pending.pop()
        if name in seen or name == "stack.demos":
            continue
        if not _OURS.match(name):
            return False
        source = inspect.getsource(importlib.import_module(name))
        if _FOREIGN.search(source):
            return False
        seen[name] = _COPIED.sub(_renamed, source)
        pending += _IMPORTED.findall(source)
        for line in _NAMED.findall(source):
            pending += [f"stack.demos.{word.strip()}" for word in line.split(",")]
        # a suite finds its families by name
        family = case.options.get("name")
        if name == "stack.demos.suite" and family is not None:
            pending.append(_family(str(family)))
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").touch()
    for name, source in seen.items():
        (target / f"{name.rpartition('.')[2]}.py").write_text(source, encoding="utf-8")
    return True


def _renamed(found: re.Match[str]) -> str:
    module = found[1] or found[2]
    return f"{FOLDER}.{module}" if module else FOLDER


def _family(name: str) -> str:
    families: dict[str, Sequence[str]] = importlib.import_module("stack.demos.suite").FAMILIES
    return next(f"stack.demos.suite_{f}" for f, names in families.items() if name in names)
