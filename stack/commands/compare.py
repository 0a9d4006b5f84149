"""`stackc compare`: compare compilers on one program."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.commands import common
from stack.errors import UsageError
from stack.explore.check import WAY_OUT, check_draws
from stack.explore.lowering import capture, label, with_random_inputs
from stack.explore.target import ExampleCall
from stack.measure.compare import SCHEMA, compare, describe
from stack.measure.partitions import SCHEMA as SHARDING_SCHEMA
from stack.measure.partitions import compare_partitions
from stack.measure.partitions import describe as describe_partitions
from stack.measure.sharding_suite import annotate
from stack.measure.systems import program_of
from stack.measure.timing import LEAST, ROUNDS
from stack.measure.transplant_race import described as describe_transplants
from stack.measure.transplant_race import transplant_race
from stack.report.make import compared_report
from stack.report.page import page
from stack.run.frontend import Captured
from stack.run.pipeline_edits import DEFAULT, is_default
from stack.run.specs import parse_backends

PEERS = "inductor,xla,tvm,eager"
PARTITIONERS = "shardy,xla,dtensor"
TEXT = f"""
    Run one program through our compiler and through others, and compare: the kernels, library
    calls and fusion groups (by source line) that each one produced, compile time, run time, peak
    memory, and the error against a double precision run.

    Each peer gets the program twice. With "ir", our imported function is replayed in the peer's
    framework. With "native", the peer runs the user's own program, if that program is written in
    the peer's framework. All are timed in the same interleaved rounds (at least {LEAST}); warm-up
    is not timed. If a peer is not installed, its row says what to install; the others still run.

    With --sharding nothing is run. The program is annotated (--mesh, --shard) and partitioned by
    our passes, by XLA (on devices of the host), by Shardy's own passes and by DTensor (on a fake
    process group). The table shows each one's collectives, the bytes that a rank sends, the
    longest chain of dependent messages, the peak memory of a rank and the planning time.

    With --transplant the fusion groups of peers are imposed on our function, and our backend
    generates the code. The table separates what was fused (these groups in our code, against our
    own groups) from how well it was coded (the peer's code against ours, for equal groups). Groups
    that our rules call illegal are listed with the reason; they are split there, and the rest
    applies.

    exit codes: 0 all agree, 1 a system failed or disagrees, 5 a peer is missing

    examples:
      stackc compare demos/transformer.py:llama_block --with inductor,xla,tvm,eager
      stackc compare demos/transformer.py:llama_block --frontend jax --with xla,eager --json
      stackc compare net.py:net -i 'f32[8,8]' --passes default --passes default,-stream --with eager
      stackc compare model.py:net -i 'f32[8,128]' --with 'tvm{{seconds=60}},inductor' --html c.html
      stackc compare demos/transformer.py:llama_block --transplant inductor,xla,tvm
      stackc compare model.py:net --sharding --mesh dp=2,tp=4 --shard 'x: dp' --with shardy,xla
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of `stackc compare`."""
    parser = common.command(subparsers, "compare", run, "compare with other compilers", TEXT)
    common.add_target(parser)
    parser.add_argument(
        "--with",
        dest="peers",
        metavar="PEERS",
        help="separated by commas, with options as in 'tvm{seconds=60}'"
        f" (default: {PEERS}; with --sharding: {PARTITIONERS})",
    )
    common.add_compile(parser, several_passes=True)
    parser.add_argument(
        "--transplant",
        metavar="PEERS",
        help="impose the fusion groups of these peers on our function; takes the place of --with",
    )
    parser.add_argument("--sharding", action="store_true", help="compare partitions")
    common.add_mesh(parser)
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        metavar="N",
        help="rounds of timing (default: %(default)s)",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write everything as one web page, as `stackc report` does"
    )
    common.add_wide(parser)
    common.add_json(parser, SCHEMA)


def run(args: argparse.Namespace) -> int:
    """Compares the systems and prints the result; the exit code says if all agree."""
    if args.sharding:
        return _run_sharding(args)
    if args.mesh or args.shard:
        raise UsageError("--mesh and --shard work only with --sharding")
    if args.transplant is not None:
        return _run_transplant(args)
    peers = parse_backends(args.peers or PEERS)
    target = common.target_of(args)
    passes: list[str] = args.passes or ["default"]
    args.passes = passes[0]
    settings = common.settings_of(args)
    captured, frontend = capture(target, settings)
    if not isinstance(target, ExampleCall):
        captured = with_random_inputs(captured)
    _check_repeatable(captured)
    program = program_of(captured, frontend)
    found = compare(
        [program],
        peers,
        backend=settings.backend,
        passes=passes,
        options=settings.options,
        target=label(target),
        rounds=args.rounds,
        say=common.progress,
    )
    try:
        if args.html:
            report = compared_report(found, program, common.progress)
            Path(args.html).write_text(page(report), encoding="utf-8")
            common.progress(f"wrote {args.html}")
        if args.json:
            common.print_json(found.as_dict())
        else:
            print(describe(found))
        for system in found.systems:
            if system.is_missing:
                common.progress(f"{system.label} is not available: {system.problem}")
        return found.exit_code
    finally:
        found.close()


def _run_transplant(args: argparse.Namespace) -> int:
    """Times the fusion groups of peers in our code, and prints the table."""
    if args.peers or args.html or len(args.passes or ()) > 1:
        raise UsageError("--transplant works without --with and --html, and with one --passes")
    peers = parse_backends(args.transplant)
    args.passes = (args.passes or [DEFAULT])[0]
    if not is_default(args.passes):
        raise UsageError(
            f"--transplant replaces the fusion pass of our pipeline, so --passes must start with"
            f" {DEFAULT!r}, as in 'default,-layout', not {args.passes!r}"
        )
    settings, target = common.settings_of(args), common.target_of(args)
    captured, frontend = capture(target, settings)
    if not isinstance(target, ExampleCall):
        captured = with_random_inputs(captured)
    _check_repeatable(captured)
    program = program_of(captured, frontend)
    found = transplant_race(program, peers, settings, rounds=args.rounds, say=common.progress)
    try:
        if args.json:
            common.print_json(found.as_dict())
        else:
            print(describe_transplants(found))
        return found.exit_code
    finally:
        found.comparison.close()


def _run_sharding(args: argparse.Namespace) -> int:
    if not args.mesh:
        raise UsageError("--sharding needs a mesh, such as --mesh dp=2,tp=4")
    target = common.target_of(args)
    captured, _ = capture(target, common.settings_of(args))
    func = annotate(captured.func, args.mesh, args.shard)
    peers = names(PARTITIONERS if args.peers is None else args.peers)
    rows = compare_partitions(func, peers)
    if args.json:
        found = [row.as_dict() for row in rows]
        document = {"schema": SHARDING_SCHEMA, "target": label(target), "mesh": args.mesh}
        common.print_json({**document, "shard": args.shard, "rows": found})
    else:
        print(describe_partitions(rows))
    return 0


def names(text: str) -> list[str]:
    """Splits a list of names at its commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _check_repeatable(captured: Captured) -> None:
    """Raises UsageError if a program uses random draws, or writes to its buffers in each run."""
    check_draws(captured.func)
    written = captured.notes.get("written buffers", "").split("\n")
    if any(written):
        named = ", ".join(written)
        raise UsageError(f"the program writes to its buffers {named} in each run; {WAY_OUT}")
