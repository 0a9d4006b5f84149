"""Compile the training step of a program; record its forward and backward graphs."""

from __future__ import annotations

import stack.plugins as plugins
from stack.errors import UsageError
from stack.explore.lowering import Settings, inspect_again, is_printed
from stack.explore.target import CommandTarget, ExampleCall
from stack.run.backend import Backend
from stack.run.compile import DEFAULT_BACKEND
from stack.run.frontend import RECORD
from stack.run.record import Run
from stack.run.trace import find_frontend


def train_runs(target: CommandTarget, settings: Settings) -> dict[str, Run]:
    """Compiles results and gradients of a program; returns the record of each graph by its role.

    For a torch program, each graph of Dynamo gives a joint graph, which is cut into a forward and a
    backward graph. A JAX program gives one graph. Graphs for a GPU or for a named target are only
    recorded, then compiled for it; that machine may be absent.
    """
    if not isinstance(target, ExampleCall):
        raise UsageError("--train needs a program: a function from IR text has no gradients")
    frontend = find_frontend(target.fn, target.args, target.frontend)
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    is_here = not is_printed(backend, settings)
    options = {
        "backend": backend.name if is_here else RECORD,
        "cut_for": backend.name,
        "passes": settings.passes if is_here else "default",
        "strict": settings.strict,
    }
    found: dict[str, Run] = {}
    for run in frontend.train_runs(target.fn, target.args, options):
        role = run.target.split(" ")[-1] or "train"
        name = role if role not in found else f"{role}-{len(found)}"
        run.target = f"{target.spec} ({name})"
        found[name] = run if is_here or role == "joint" else inspect_again(run, settings)
    return found
