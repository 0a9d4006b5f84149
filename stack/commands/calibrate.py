"""`stackc calibrate`: measures this machine, for a target file."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.commands import common
from stack.errors import UsageError
from stack.measure.calibrate import base_at_hand, calibrated
from stack.target import load
from stack.target.files import save, text_of

CALIBRATE = """
    Measure what this machine reaches, and write it as a target file.

    On a CPU: copies in memory and in the L2 cache by one thread, multiply-adds on all threads,
    16-bit matmuls of a library, and the cost of waking the threads. On a GPU: matmuls and copies
    of the sizes that `stackc bench` calls ceilings, copies in the cache, and the cost of one more
    kernel in a CUDA graph. Numbers that are not measured are copied from BASE; the file says which
    is which. The machine should be idle meanwhile. You may edit the file: --target reads it again
    and names any number that is missing or absurd.

    examples:
      stackc calibrate -o here.toml
      stackc targets here.toml
      stackc dump model.py:net -i 'f32[8,128]' --target here.toml
      stackc calibrate --target sm_90 -o h200.toml        on a machine with that GPU
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of the subcommand."""
    parser = common.command(
        subparsers, "calibrate", run, "measure this machine for passes", CALIBRATE
    )
    parser.add_argument(
        "--target",
        metavar="BASE",
        help="a name or a file: sets the kind of machine to measure and the numbers not measured"
        " (default: this machine's GPU if it has one, else its CPU)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file, not to stdout")


def run(args: argparse.Namespace) -> int:
    """Measures the machine and writes a target file."""
    path = Path(args.output) if args.output else None
    if path is not None and not path.resolve().parent.is_dir():
        raise UsageError(f"there is no folder {path.resolve().parent} to write {path.name} to")
    base = load(args.target) if args.target else base_at_hand()
    name = path.stem if path is not None else f"{base.name}-here"
    found = calibrated(base, name, common.progress)
    if path is None:
        print(text_of(found), end="")
        return 0
    save(found, path)
    common.progress(f"wrote {path}; lower for it with --target {path}")
    return 0
