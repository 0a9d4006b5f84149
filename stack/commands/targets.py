"""`stackc targets` and `stackc calibrate`: machines as data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stack.commands import common
from stack.errors import UsageError
from stack.explore.table import table
from stack.target import Target, load, names
from stack.target.files import REFERENCE, save, text_of
from stack.target.record import kind_of, numbers_of

SCHEMA = "stack.targets/1"
TARGETS = f"""
    The machines that programs can be lowered for, and the numbers that describe each.

    Passes decide by these numbers, and by nothing else that they know of a machine: how large a
    tile is, whether a product is split, whether a stream costs less than its parts. So the same
    program has other schedules for other targets, and none of them needs to be here:

      stackc dump model.py:net -i 'f32[8,128]' --backend triton --target sm_80
      stackc dump model.py:net -i 'f32[8,128]' --target avx2

    NAME prints one in full, a file too: each number with its unit, what it means, and where it
    comes from (a datasheet, a measurement, or a choice and its reason). Without --target a program
    is lowered for the machine at hand; a bare pipeline, as of `stackc opt`, for
    {" or ".join(REFERENCE.values())}. A GPU without a file of its own, as sm_86, takes that of the
    newest one before it.

    examples:
      stackc targets
      stackc targets sm_90
      stackc targets avx512 --json
"""
CALIBRATE = """
    Measure what the machine at hand reaches, and write it as a target file.

    On a CPU: copies in memory and in the second-level cache by one thread, multiply-adds on all,
    16-bit products of a library, and what it costs to wake the threads. On a GPU: products and
    copies of the size that `stackc bench` calls ceilings, copies in the cache, and one more kernel
    in a CUDA graph. What is not measured is taken from BASE, and the file says which number is
    which. Let the machine do nothing else meanwhile. Edit the file as you like: --target reads it
    again, and refuses a number that is missing or absurd by its name.

    examples:
      stackc calibrate -o here.toml
      stackc targets here.toml
      stackc dump model.py:net -i 'f32[8,128]' --target here.toml
      stackc calibrate --target sm_90 -o h200.toml        on a machine with that GPU
"""


def add(subparsers: common.Subparsers) -> None:
    """The subcommands' arguments."""
    parser = common.command(subparsers, "targets", run_targets, "machines to compile for", TARGETS)
    parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="only this one, in full")
    common.add_json(parser, SCHEMA)
    parser = common.command(
        subparsers, "calibrate", run_calibrate, "measure this machine for passes", CALIBRATE
    )
    parser.add_argument(
        "--target",
        metavar="BASE",
        help="a name or a file: its kind of machine is measured, and it gives the other numbers"
        " (default: the GPU at hand, where there is one, else the CPU)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write there, not to stdout")


def run_targets(args: argparse.Namespace) -> int:
    """Print all targets, or one."""
    found = [load(args.name)] if args.name else [load(name) for name in names()]
    if args.json:
        common.print_json({"schema": SCHEMA, "targets": [as_dict(t) for t in found]})
    elif args.name:
        (one,) = found
        features = ", ".join(one.features) or "none"
        print(f"{one.name}: {one.title}\n{kind_of(one)}, arch {one.arch}, features {features}\n")
        print(table(["number", "value", "unit", "what", "where from"], rows_of(one)))
    else:
        rows = [[t.name, kind_of(t), t.arch, t.title] for t in found]
        print(table(["name", "kind", "arch", "machine"], rows))
    return 0


def rows_of(target: Target) -> list[list[Any]]:
    """The numbers of a target as rows of a table."""
    return [
        [key, shown(getattr(target, key)), spec.metadata["unit"], spec.metadata["doc"],
         target.sources.get(key, "")]
        for key, spec in numbers_of(type(target)).items()
    ]  # fmt: skip


def shown(value: float) -> str:
    """A number as a file may have it: whole ones whole, others short."""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def as_dict(target: Target) -> dict[str, Any]:
    """A target for JSON."""
    numbers = {
        key: {
            "value": getattr(target, key),
            "unit": spec.metadata["unit"],
            "source": target.sources.get(key, ""),
        }
        for key, spec in numbers_of(type(target)).items()
    }
    words = {key: getattr(target, key) for key in ("name", "title", "arch")}
    return {**words, "kind": kind_of(target), "features": target.features, "numbers": numbers}


def run_calibrate(args: argparse.Namespace) -> int:
    """Measure, and write a target."""
    from stack.measure.calibrate import base_at_hand, calibrated

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
