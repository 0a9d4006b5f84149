"""`stackc opt --against optimum`: a fusion pass beside the best fusing that exists."""

from __future__ import annotations

import argparse

from stack.commands import common
from stack.errors import UsageError
from stack.explore.lowering import Settings
from stack.explore.target import resolve
from stack.measure.optimum_race import race_fusings
from stack.run.pipeline_edits import DEFAULT, is_default

NOT_AGAINST = (
    *("check", "fuel", "print_changed", "no_lines", "stats", "verbose", "schedule", "output"),
)


def run(args: argparse.Namespace) -> int:
    """Judges the fusion pass of a pipeline by the best fusing that exists."""
    given = [f"--{name.replace('_', '-')}" for name in NOT_AGAINST if getattr(args, name)]
    if given:
        raise UsageError(f"--against compares fusings and prints no function: leave out {given[0]}")
    if args.best < 1:
        raise UsageError(f"--best {args.best}: at least the best fusing is shown, so 1 or more")
    passes = args.pass_pipeline or DEFAULT
    if not is_default(passes):
        raise UsageError(
            f"--against judges the fusion pass of a backend, so --pass-pipeline must start with"
            f" {DEFAULT!r}, as in 'default,-fuse,+mine.py:Mine@fused', not {passes!r}"
        )
    common.check_frontend(args.frontend)
    settings = Settings(args.backend, passes, frontend=args.frontend, machine=args.target or "")
    target = resolve(args.file, args.frontend, args.input)
    return race_fusings(target, settings, args.best, args.rounds, args.plot, common.progress)
