"""`stackc run --kernel`: a kernel written by hand beside the generated one."""

from __future__ import annotations

import argparse
from typing import Any

from stack.commands import common
from stack.commands.run import report_results
from stack.errors import UsageError
from stack.explore.saved_run import load_run
from stack.explore.table import number
from stack.measure.kernel_race import race_kernel
from stack.run.compile import DEFAULT_BACKEND


def run(args: argparse.Namespace, folder: str) -> int:
    """Races a hand-written kernel against a generated one, and checks each of its results."""
    name, equals, code = args.kernel.partition("=")
    if not equals or ":" not in code:
        raise UsageError(f"--kernel takes NAME=file.py:function, not {args.kernel!r}")
    saved = load_run(folder)
    backend = args.backend or str(saved.manifest["backend"]) or DEFAULT_BACKEND
    found = race_kernel(saved, name, code, backend, args.seed)
    more: dict[str, Any] = {}
    if not found.problem:
        more[f"us of {name}"] = number(1e6 * found.ours)
        more[f"us of {code}"] = number(1e6 * found.hand)
        more["checked"] = found.checks
    shown = found.found or None  # there are no results if the kernel broke a rule
    report_results(args, found.func, found.expected, shown, None, **more)
    if found.problem:
        common.progress(found.problem)
    return int(bool(found.problem))
