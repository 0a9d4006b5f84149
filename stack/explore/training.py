"""The training step of a program: the records of its graphs, forward and backward."""

from __future__ import annotations

from stack.errors import UsageError
from stack.explore.lowering import Settings
from stack.explore.target import Program, Target
from stack.run.compile import find_frontend
from stack.run.record import Run


def train_runs(target: Target, settings: Settings) -> dict[str, Run]:
    """Compile results and gradients of a program, and give the record of each graph by its role.

    torch programs make a forward and a backward graph for each graph that Dynamo finds, JAX
    programs one graph in all.
    """
    if not isinstance(target, Program):
        raise UsageError("--train is for programs: a function from text has no gradient to ask for")
    frontend = find_frontend(target.fn, target.args, target.frontend)
    options = {
        "backend": settings.backend,
        "passes": settings.passes,
        "strict": settings.strict,
    }
    found: dict[str, Run] = {}
    for run in frontend.train_runs(target.fn, target.args, options):
        role = run.target.split(" ")[-1] or "train"
        name = role if role not in found else f"{role}-{len(found)}"
        run.target = f"{target.spec} ({name})"
        found[name] = run
    return found
