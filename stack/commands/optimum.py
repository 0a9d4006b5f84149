"""`stackc opt --against optimum`: judge a fusion pass by the best fusing that exists."""

from __future__ import annotations

import argparse
from dataclasses import replace

from stack.commands import common
from stack.errors import UsageError
from stack.explore.fusion_input import fusion_input, fusion_of
from stack.explore.lowering import Settings, all_stages, capture, label, with_random_inputs
from stack.explore.optimum import BEST, described, landscape
from stack.explore.target import ExampleCall, resolve
from stack.run.pipeline_edits import DEFAULT, is_default
from stack.wings import wing

ROUNDS = 7  # of timing
AGAINST = ("optimum",)
NOT_WITH = ("check", "fuel", "print_changed", "no_lines", "stats", "verbose", "schedule", "output")


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `--against`."""
    group = parser.add_argument_group("judge a fusion pass")
    group.add_argument(
        "--against",
        choices=AGAINST,
        help="search all legal fusings of FILE, which may also be file.py:name; compare the fusion"
        " pass of the pipeline with the best, predicted and measured",
    )
    group.add_argument(
        "-i", "--input", action="append", default=[], metavar="SPEC", help="as for `stackc dump`"
    )
    group.add_argument("--frontend", metavar="NAME", help="as for `stackc dump`")
    group.add_argument("--backend", metavar="NAME", help="whose pipeline it is (default: mlir)")
    group.add_argument(
        "--best",
        type=int,
        default=BEST,
        metavar="N",
        help="how many of the best fusings to show and measure (default: %(default)s)",
    )
    group.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        metavar="N",
        help="rounds of timing (default: %(default)s); 0 measures nothing",
    )
    group.add_argument(
        "--plot", metavar="FILE", help="plot the landscape; without suffix, as svg and png"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the landscape of a function's fusings, and measures the best ones and the pass's."""
    given = [f"--{name.replace('_', '-')}" for name in NOT_WITH if getattr(args, name)]
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
    captured, frontend = capture(target, settings)
    stages, machine = all_stages(captured.func, settings)
    own, _ = all_stages(captured.func, replace(settings, passes=DEFAULT))
    found = landscape(fusion_input(captured.func, stages, machine, fusion_of(own)), args.best)
    print(described(found))
    if args.plot:
        marks = {s.name: s.seconds for s in found.standings}
        title = f"{label(target)}: {found.size} legal fusings, predicted for {found.machine}"
        wing("bench").plot_landscape(found.histogram, marks, title, args.plot)
        common.progress(f"wrote {args.plot}")
    if not args.rounds or args.target:
        why = "--rounds 0" if not args.rounds else f"lowered for {found.machine}, by --target"
        print(f"\nnothing is measured: {why}")
        return 0
    if not isinstance(target, ExampleCall):
        captured = with_random_inputs(captured)
    text, code = wing("bench").measured(
        captured,
        frontend,
        found,
        backend=args.backend,
        passes=passes,
        rounds=args.rounds,
        say=common.progress,
    )
    print(f"\nmeasured in {args.rounds} interleaved rounds, relative to {found.ours.name}\n")
    print(text)
    return int(code)
