"""`stackc run`: run IR text on random inputs, from any stage, or with a hand-written kernel."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.commands import common
from stack.commands.opt import not_ir, read
from stack.errors import UsageError
from stack.explore.assembly import resume, run_of
from stack.explore.lowering import Settings, capture, captured_program
from stack.explore.resume import Arrays, executable_from, results_of
from stack.explore.steps import same_run
from stack.explore.table import number, table
from stack.explore.target import IRText, resolve
from stack.ir.data import decode, encode
from stack.ir.func import Func
from stack.rewrite.check import TOLERANCE, as_list, difference
from stack.rewrite.inputs import random_inputs
from stack.run.backend import Backend
from stack.run.compile import DEFAULT_BACKEND
from stack.wings import part, wing

RUN = """
    Run a function in IR text on random inputs. The reference interpreter always runs it. With
    --backend, a backend runs it too and the results are compared (exit code 1 if they differ).
    The interpreter checks that data-dependent indices are in bounds. Native code does not check
    them, so a function with an index out of bounds is not given to it, except with --unsafe.

    examples:
      stackc run block.stack
      stackc run r1:fused --backend mlir
      stackc run r1:imported --seed 7 --save out.npz
      stackc run edited.stack --stage fused --backend mlir    run only what follows that stage
      stackc run r1/09-mlir.mlir --stage mlir           run edited kernels from a file
      stackc run edited.stack --against r1:imported    does it compute the same as the program?
      stackc run r1 --kernel dot_add=hand.py:mine    hand-written: checked, timed against ours
      stackc run model.py:net -i 'f32[8,128]' --first-nan    the op that makes the first nan
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of `stackc run`."""
    parser = common.command(subparsers, "run", run, "run IR text on random inputs", RUN)
    help_ = "IR text, RUN:STAGE, or - for stdin; with --first-nan also a program"
    parser.add_argument("file", nargs="?", default=argparse.SUPPRESS, metavar="FILE", help=help_)
    parser.add_argument("--from", dest="file", help=argparse.SUPPRESS)  # scripts may say it
    common.add_inputs(parser)
    parser.add_argument(
        "--stage", metavar="NAME", help="the stage of FILE: only what follows it is run"
    )
    parser.add_argument(
        "--against", metavar="FILE", help="compare with this: RUN:STAGE, or a stage of the same run"
    )
    parser.add_argument(
        "--kernel",
        metavar="NAME=CODE",
        help="FILE is a run; race file.py:function against this kernel: it gets NumPy arrays, or"
        " those of torch or JAX if its file imports only that or annotates them; torch on a GPU",
    )
    parser.add_argument(
        "--backend", metavar="NAME", help="also run it in this backend, and compare"
    )
    parser.add_argument(
        "--unsafe",
        action="store_true",
        help="run it only in the backend, without bounds checks on indices",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random inputs"
    )
    parser.add_argument("--save", metavar="NPZ", help="write inputs and results")
    parser.add_argument(
        "--first-nan",
        action="store_true",
        help="interpret FILE, a program with its arguments or IR text with random ones; name the"
        " op, source line, module and kernel where a nan first appears, else an infinity of a"
        " result, with the operands; exit code 1 if there is one",
    )
    parser.add_argument(
        "--first-inf",
        action="store_true",
        help="the same for the first infinity of a result, also if there are nans",
    )
    common.add_wide(parser)
    common.add_json(parser, "stack.results/1")


def run(args: argparse.Namespace) -> int:
    """Interprets a function on random inputs and prints statistics of its results.

    If a backend or another function is given, compares their results. With a kernel's text or a
    kernel written by hand, runs these instead.
    """
    if args.file is None:
        raise UsageError("give a FILE to run")
    if args.first_nan or args.first_inf:
        return _run_first_nan(args, args.file)
    if ".py:" in args.file:
        error = not_ir(args.file, args.input)
        raise UsageError(f"{error}; to find the first nan of the program, add --first-nan")
    if args.input or args.frontend:
        raise UsageError("-i and --frontend are for a program with --first-nan, not for IR text")
    if args.against:
        args.against = same_run(args.against, args.file)
    if args.kernel:
        return part("bench", "race-kernel")(args, args.file)
    if _is_kernel_text(args):
        return _run_text(args, args.file)
    func = read(args.file)
    if args.stage and not args.backend:
        raise UsageError("--stage is the stage at which a backend continues: add --backend")
    inputs = random_inputs(func, args.seed)
    if args.unsafe and args.backend:
        runner(func, args.backend, args.stage)(inputs)
        return 0
    truth = read(args.against) if args.against else func
    if [p.type for p in truth.params] != [p.type for p in func.params]:
        raise UsageError(f"{args.against} takes other arguments than {args.file}")
    try:
        expected = as_list(truth.interpret(*inputs))
        found = None
        if args.backend:
            found = runner(func, args.backend, args.stage)(inputs)
        elif args.against:
            found = as_list(func.interpret(*inputs))
    except IndexError as error:
        raise UsageError(
            f"on these inputs {error}; to run it in a backend anyway, add --unsafe"
        ) from None
    if args.save:
        held: dict[str, Any] = {
            f"input_{p.attrs['name']}": a for p, a in zip(func.params, inputs, strict=True)
        }
        held |= {f"result_{i}": a for i, a in enumerate(expected)}
        np.savez(args.save, **held)
    who = (args.backend or args.file, args.against or "the interpreter")
    return report_results(args, truth, expected, found, who)


def report_results(
    args: argparse.Namespace,
    func: Func,
    expected: Sequence[Any],
    found: Sequence[Any] | None,
    who: tuple[str, str] | None,
    **more: Any,
) -> int:
    """Prints statistics of the `expected` results, and the errors of `found`, if given.

    Returns the exit code: 1 if an error exceeds the tolerance of its element type. Then stderr
    names the two that disagree, such as a backend and the interpreter, given as `who`; nothing is
    written if `who` is None.
    """
    rows: list[dict[str, Any]] = []
    agrees = True
    for i, (result, want) in enumerate(zip(func.results, expected, strict=True)):
        row: dict[str, Any] = {"result": i, "type": str(result.type), **statistics(want)}
        if found is not None:
            error = difference(want, found[i], result.dtype)
            row["error"] = error
            agrees &= error <= TOLERANCE.get(result.dtype.name, 0.0)
        rows.append(row)
    if args.json:
        document = {"schema": "stack.results/1", "function": func.name, "results": rows, **more}
        common.print_json(document)
    else:
        print(table(list(rows[0]) if rows else ["result"], [list(r.values()) for r in rows]))
        for what, value in more.items():
            print(f"{what}: {value}")
    if not agrees and who is not None:
        common.progress(f"{who[0]} and {who[1]} disagree")
    return 0 if agrees else 1


def _run_first_nan(args: argparse.Namespace, file: str) -> int:
    """Prints where a nan or an infinity first appears; the exit code is 1 if one does."""
    if args.against or args.kernel or args.stage or args.unsafe or args.save:
        raise UsageError(
            "--first-nan takes only inputs, --frontend, --backend and --seed beside it"
        )
    common.check_frontend(args.frontend)
    target = resolve(file, args.frontend, args.input)
    found = wing("faults").first_nan_of(target, Settings(args.backend), args.first_inf, args.seed)
    if args.json:
        common.print_json({"schema": "stack.first-nan/1", **asdict(found)})
    else:
        print(found)
    return int(found.first is not None)


def _is_kernel_text(args: argparse.Namespace) -> bool:
    """True if --stage names a backend's own text, such as PTX, so that FILE is not IR text."""
    backend: Backend = plugins.load("stack.backends", args.backend or DEFAULT_BACKEND)
    return args.stage in backend.lowering.artifacts


def _run_text(args: argparse.Namespace, file: str) -> int:
    """Runs a program with the kernels in a file instead of those generated for it."""
    saved = run_of(file, args.against)
    func, made = resume(saved, file, args.stage, args.backend or DEFAULT_BACKEND)
    truth = read(args.against) if args.against else func
    inputs = random_inputs(truth, args.seed)
    expected = as_list(truth.interpret(*inputs))
    found = results_of(made, func, inputs)
    return report_results(args, truth, expected, found, (file, args.against or "the interpreter"))


def statistics(array: Any) -> dict[str, Any]:
    """Returns minimum, mean, maximum and number of nans, to recognize a result."""
    held = np.asarray(array)
    if held.size == 0:
        return {"min": "-", "mean": "-", "max": "-", "nan": 0}
    wide = np.abs(held) if held.dtype.kind == "c" else held.astype(np.float64)
    return {
        "min": number(float(np.nanmin(wide))),
        "mean": number(float(np.nanmean(wide))),
        "max": number(float(np.nanmax(wide))),
        "nan": int(np.isnan(wide).sum()),
    }


def runner(
    func: Func, backend: str, stage: str | None = None
) -> Callable[[Arrays], list[np.ndarray]]:
    """Compiles a function, from `stage` on if given; returns a function that runs it, with results
    in the interpreter's format.
    """
    if stage:
        made = executable_from(func, stage, backend)
        return lambda inputs: results_of(made, func, inputs)
    target, settings = IRText(func.name, func), Settings(backend)
    program = captured_program(*capture(target, settings), target, settings)

    def run(inputs: Arrays) -> list[np.ndarray]:
        ready = [encode(a, p.dtype) for a, p in zip(inputs, func.params, strict=True)]
        results = program.executable_for(ready).run(ready)
        return [decode(r, n.dtype) for r, n in zip(results, func.results, strict=True)]

    return run
