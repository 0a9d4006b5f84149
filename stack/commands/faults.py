"""`stackc bisect`, `reduce`, `repro`: find the first wrong step and the smallest program for it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import stack.plugins as plugins
from stack.commands import common
from stack.commands.opt import read
from stack.commands.run import runner
from stack.errors import StackError, UsageError
from stack.explore.lowering import all_stages, capture, own_inputs, report_failure
from stack.explore.resume import alone, results_of
from stack.explore.saved_run import load_run
from stack.explore.steps import shown_by
from stack.explore.target import ExampleCall
from stack.faults.bisect import Culprit, Runs, bisect, frontend_culprit
from stack.faults.reduce import reduce
from stack.ir import files
from stack.ir.func import Func
from stack.rewrite.blame import shown
from stack.rewrite.check import NATIVE
from stack.rewrite.inputs import random_inputs
from stack.rewrite.pipeline import Pipeline
from stack.rewrite.truth import Truth
from stack.run.backend import Backend, Executable
from stack.run.compile import DEFAULT_BACKEND
from stack.run.frontend import Captured, Frontend

BISECT = """
    Find the first wrong step of a compilation. Checks the frontend against eager execution, then
    every pass, then every kernel. Inputs are the program's own arguments, then those of all kinds:
    ties, large, tiny, huge and denormal values, rows of zeros, infinities, nan, integers of both
    signs. If a pass is wrong, finds its first wrong rewrite: rule, node and source line. Exit code
    1 if something is wrong.

    examples:
      stackc bisect model.py:net -i 'f32[8,128]'
      stackc bisect r1:imported --backend triton --target sm_90
      stackc bisect model.py:net -i 'f32[8,128]' --passes 'default,+mine.py:Mine@fused'
"""
REDUCE = """
    Shrink a function while it still fails. With --error-regex, it fails if compiling or running it
    raises an error that matches. Without, it fails if its results differ from the interpreter's.

    examples:
      stackc reduce r1:imported -o small.stack
      stackc reduce r1:imported --error-regex 'no rule' -o small.stack
      stackc reduce r1:imported --pass-pipeline=canonicalize,fuse
"""
REPRO = """
    Write one file that reproduces one thing: the function of a single kernel of a run, or the
    whole program. Its first line is the command that runs it.

    examples:
      stackc repro r1 --kernel dot_add -o dot_add.stack
      stackc repro r1
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of the three subcommands."""
    parser = common.command(subparsers, "bisect", run_bisect, "find the first wrong step", BISECT)
    common.add_target(parser)
    common.add_compile(parser)

    parser = common.command(subparsers, "reduce", run_reduce, "shrink a failing function", REDUCE)
    parser.add_argument("file", metavar="FILE", help="a file of IR text, or RUN:STAGE")
    parser.add_argument(
        "--error-regex", metavar="REGEX", help="regex that the error text must match"
    )
    parser.add_argument(
        "--pass-pipeline", metavar="PIPELINE", help="only run and check this pipeline"
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        default=DEFAULT_BACKEND,
        help="runs the function (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file, not to stdout")

    parser = common.command(subparsers, "repro", run_repro, "one file to reproduce a kernel", REPRO)
    parser.add_argument("saved", metavar="RUN", help="the folder of a saved run")
    parser.add_argument("--kernel", metavar="NAME", help="only this kernel")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file, not to stdout")


def run_bisect(args: argparse.Namespace) -> int:
    """Prints the first step of a lowering that computes wrong results; returns 1 if there is one.

    Such a step is a pass, one of its rewrites, or a kernel.
    """
    settings = common.settings_of(args)
    target = common.target_of(args)
    captured, frontend = capture(target, settings)
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    culprit = _of_frontend(captured, frontend) if isinstance(target, ExampleCall) else None
    if culprit is None:
        stages, machine = all_stages(captured.func, settings)
        shown = shown_by(backend) if backend.lowering.steps else None
        native, given = _native(backend, settings.machine), own_inputs(captured, frontend)
        culprit = bisect(captured.func, stages, machine, native, shown, given)
    print(culprit or "every step computes the same as the program")
    return int(culprit is not None)


def _of_frontend(captured: Captured, frontend: Frontend) -> Culprit | None:
    """Compares the imported function with eager execution; returns its first wrong result.

    Returns None if all results agree, or if the framework cannot run here.
    """
    eager: Backend = plugins.load("stack.backends", "eager")
    if eager.missing() is not None or eager.peer is None or eager.peer.native is None:
        return None
    return frontend_culprit(captured, frontend, eager.peer.native(captured, {}))


def _native(backend: Backend, machine: str) -> Runs | None:
    """Returns a function that compiles with a backend and runs the result, for `bisect`.

    Returns None if the backend cannot run here, if a target is named, or if the backend has no
    stage below the tensor level.
    """
    if machine or backend.missing() is not None or backend.lowering.level == "tensor":
        return None

    last: dict[Func, Executable] = {}  # the same function runs on inputs of all kinds

    def run(func: Func, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if func not in last:
            last.clear()
            last[func] = backend.compile(func, {})
        return results_of(last[func], func, inputs)

    return run


def run_reduce(args: argparse.Namespace) -> int:
    """Prints a smaller function that still shows the failure of the function in a file."""
    func = read(args.file)
    wanted = re.compile(args.error_regex) if args.error_regex else None

    def shows(smaller: Func) -> bool:
        problem = _failure(smaller, args.pass_pipeline, args.backend, wanted is None)
        return bool(problem) and (wanted is None or wanted.search(problem) is not None)

    if not shows(func):
        what = f"no error with {args.error_regex!r}" if wanted else "nothing wrong"
        raise UsageError(f"{args.file} shows {what}, so there is nothing to reduce")
    found = reduce(func, shows)
    common.progress(f"{len(found.nodes)} of {len(func.nodes)} nodes are left")
    _write(found, args.output)
    return 0


def _failure(func: Func, pipeline: str | None, backend: str, compare: bool) -> str:
    """Returns the failure of a function: an error's text, or "results differ"; "" if it works.

    Runs the pipeline if there is one, else the backend; `compare` checks the backend's results.
    """
    try:
        if pipeline:
            Pipeline(pipeline).run(func, check=True)
            return ""
        return _wrong_result(func, backend) if compare else _error(func, backend)
    except StackError as error:
        return report_failure(error)
    except Exception as error:
        return shown(error)


def _error(func: Func, backend: str) -> str:
    """Compiles and runs a function on random inputs, to see if it raises; always returns "".

    The caller formats the exception, if one is raised, as the failure.
    """
    runner(func, backend)(random_inputs(func))
    return ""


def _wrong_result(func: Func, backend: str) -> str:
    """Returns "results differ" if a backend is wrong on some inputs, else an empty text."""
    truth = Truth(func)
    truth.allow(NATIVE)
    run = runner(truth.func, backend)
    wrong = (truth.error(kind, run(truth.inputs[kind]))[1] for kind in truth.kinds)
    return "results differ" if any(wrong) else ""


def run_repro(args: argparse.Namespace) -> int:
    """Prints the function of a saved run, or of one of its kernels, with a command to run it."""
    run = load_run(args.saved)
    backend = str(run.manifest["backend"]) or DEFAULT_BACKEND
    func, stage = alone(run, args.kernel) if args.kernel else (run.func("imported"), "imported")
    file = args.output or "repro.stack"
    _write(func, args.output, f"// stackc run {file} --stage {stage} --backend {backend}\n")
    return 0


def _write(func: Func, output: str | None, head: str = "") -> None:
    if not output:
        print(head + str(func).rstrip())
        return
    files.save(func, output)
    path = Path(output)
    path.write_text(head + path.read_text(encoding="utf-8"), encoding="utf-8")
