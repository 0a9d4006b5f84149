"""`stackc dump`: compile a program and show every stage."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.commands import common
from stack.errors import UsageError
from stack.explore.check import check_draws, check_stages
from stack.explore.diff import without_lines
from stack.explore.dump import describe
from stack.explore.in_memory_run import held
from stack.explore.layers import alike
from stack.explore.lowering import (
    Settings,
    all_stages,
    capture,
    lower_to,
    own_inputs,
    record_of,
)
from stack.explore.memory import memory_peak
from stack.explore.saved_run import SavedRun
from stack.explore.steps import STAGE, KernelSteps, check_steps, refuse_long, stepped
from stack.explore.table import table
from stack.explore.target import CommandTarget, ExampleCall
from stack.explore.terminal import Loud, filled
from stack.rewrite.truth import Verdict
from stack.run.backend import Backend
from stack.run.compile import DEFAULT_BACKEND, stages_of
from stack.run.options import target_of
from stack.run.pipeline_edits import split_weights
from stack.run.record import SCHEMA, Run, Stage
from stack.schedule.user_schedules import named_schedules
from stack.wings import missing, part, wing

SECONDS = 5.0  # between two lines about how far a check is
TEXT = """
    Compile a program and show every stage that it goes through.

    Prints a table of the stages (the pass or tool that produced each one, its time, ops and fusion
    groups) and a table of the kernels with their source lines. Then come the coverage (compiled,
    sent to a library, or fallen back to the framework) and the compile time by phase. With -o,
    writes everything to a folder: one file per stage, kernels/, decisions.json (of each pass) and
    manifest.json. IR stages
    (*.stack) can be parsed again.

    examples:
      stackc dump demos/transformer.py:llama_block -o r1
      stackc dump demos/transformer.py:llama_block --frontend jax -o r2
      stackc dump model.py:net -i 'f32[8,128]' --to fused
      stackc dump model.py:net -i 'f32[8,128]' --passes 'canonicalize,fuse{max_inputs=4}'
      stackc dump model.py:net -i 'f32[8,128]' --profile
      stackc dump model.py:net -i 'f32[8,128]' --check
      stackc dump model.py:net -i 'f32[8,128]' --backend triton --target sm_90 --steps
      stackc dump model.py:net -i 'f32[8,128]' --backend cuda --target sm_90    no GPU needed
      stackc dump model.py:net -i 'f32[8,128]' --target avx2    compile for that CPU
      stackc dump model.py:net -i 'bf16[8,128]' --backend 'triton{excess_precision=false}'
      stackc dump demos/transformer.py:gpt2 --train -o r3    r3/joint, r3/forward, r3/backward
      stackc dump model.py:net -i 'f32[8,128]' --mesh dp=2,tp=4 --shard 'x: dp' --shard 'w*: -, tp'
      stackc show r1 fused            the text of a stage
      stackc diff r1:canonical r1:fused
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of `stackc dump`."""
    parser = common.command(subparsers, "dump", run, "compile, and show every stage", TEXT)
    common.add_target(parser)
    parser.add_argument("-o", "--output", metavar="DIR", help="write the run to this folder")
    common.add_compile(parser)
    parser.add_argument(
        "--to", metavar="STAGE", help="stop after this stage, and print it (see `stackc stages`)"
    )
    parser.add_argument(
        "--steps",
        action="store_true",
        help="show how each kernel is built: its naive loop nest, then each schedule step; with"
        " --all the kernel after each; for one step: `stackc show RUN y.step3`",
    )
    common.add_mesh(parser)
    parser.add_argument("--all", action="store_true", help="print the text of every stage too")
    parser.add_argument(
        "--train", action="store_true", help="the training step: results and all gradients"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="interpret every stage on the program's own arguments and on inputs of all kinds"
        " (large, tiny, zero rows, inf, nan, ...), and look for overlapping buffers; with --steps"
        " check each step too; exit code 1 if one differs from the program",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="run it, and also print times and shares of the roofline",
    )
    common.add_memory(parser)
    common.add_graph(parser)
    common.add_wide(parser, common.EACH)
    common.add_json(parser, SCHEMA)


def run(args: argparse.Namespace) -> int:
    """Compiles a program and shows its stages."""
    settings = common.settings_of(args)
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    target_of(backend, settings.options)  # refuses a machine that the backend does not support
    _check(backend, settings)
    target = common.target_of(args)
    if args.mesh or args.shard:
        return part("mesh", "dump-mesh")(args, target)
    if args.train:
        return part("calls", "dump-training")(args, target)
    if isinstance(target, SavedRun):
        common.progress(f"{target.folder} is a saved run: compiling its imported stage again")
    if args.profile and args.to:
        raise UsageError("--profile runs the whole program: leave out --to")
    measured: Any = None
    if args.to:
        record = lower_to(target, settings, args.to)
    elif args.profile:
        measured = wing("bench").profile(target, settings, common.progress)
        record = measured.run
    else:
        record = record_of(target, settings)
    if args.output:
        common.progress(f"wrote {record.save(output_folder(args.output))}")
    if args.graph:
        wing("report").write_graph(record.func(args.to or "imported"), Path(args.graph))
        common.progress(f"wrote {args.graph}")
    manifest = record.manifest()
    kernels = _steps(record, backend, settings) if args.steps and not args.json else []
    if args.check:
        check_draws(next(s.func for s in record.records if s.func is not None))
        for kernel in kernels:
            refuse_long(kernel)
    given = _own_inputs(target, settings) if args.check else []
    verdicts = _checked(record.records, given) if args.check else []
    is_wrong = any(v.problem for v in verdicts)
    if args.json:
        more = {"check": [asdict(v) for v in verdicts]} if args.check else {}
        common.print_json({**manifest, **more})
        return int(is_wrong)
    print(describe(manifest))
    if args.steps:
        is_wrong |= _print_steps(kernels, args)
    if measured is not None:
        print(f"\n{measured}")
    if args.memory:
        print(f"\n{memory_peak(held(record))}")
    if args.all and not args.steps:
        print_stages(record)
    elif args.to:
        print(f"\n{record[args.to].text.rstrip()}")
    if args.check:
        _print_check(verdicts)
    if is_wrong:
        imported = record["imported"].func
        assert imported is not None
        if missing("faults"):
            print("the wing 'faults' would name the first wrong pass")
        else:
            culprit = wing("faults").bisect(imported, *all_stages(imported, settings), given=given)
            print(culprit or "no single pass is wrong")
    return int(is_wrong)


def _check(backend: Backend, settings: Settings) -> None:
    """Refuses unknown passes and unreadable schedules, before a framework is imported."""
    stages_of(backend, split_weights(settings.passes)[1], settings.rounds)
    named_schedules(settings.schedules)


def _own_inputs(target: CommandTarget, settings: Settings) -> list[np.ndarray]:
    """Returns the arguments of a program; a saved run and a file of IR text have none."""
    return own_inputs(*capture(target, settings)) if isinstance(target, ExampleCall) else []


def _steps(record: Run, backend: Backend, settings: Settings) -> list[KernelSteps]:
    """Returns the kernels with the steps of their schedules."""
    func = next((r.func for r in record.records if r.name == STAGE), None)
    if func is None:
        raise UsageError(f"--steps shows the steps of stage {STAGE}, which this run does not have")
    return list(stepped(func, backend, target_of(backend, settings.options)))


def _print_steps(found: Sequence[KernelSteps], args: argparse.Namespace) -> bool:
    """Prints the steps of each kernel; with --all also the kernel after each step.

    Equal kernels, as those of equal layers, are printed once, unless --wide is given. With --check,
    compares each step with the loop nest. Returns True if a step is wrong.
    """
    is_wrong = False
    keys = ((k.told(), k.steps[-1].func) for k in found)
    for group in [[i] for i in range(len(found))] if args.wide else alike(keys):
        kernel = found[group[0]]
        print("\n" + filled(str(kernel), " " * 10))
        if len(group) > 1:
            print(filled(f"  the same for {', '.join(f'%{found[i].value}' for i in group[1:])}"))
        for number, step in enumerate(kernel.steps if args.all else ()):
            text = without_lines(str(step.func)).rstrip()
            print(f"\n# {kernel.value}.step{number}: {step.text}\n{text}")
        if args.check:
            wrong = [f"step {n}: {why}" for n, why in check_steps(kernel) if why]
            told = wrong or ["each step computes the same as the loop nest"]
            print(*(f"   {line}" for line in told), sep="\n")
            is_wrong |= bool(wrong)
    return is_wrong


def _checked(stages: Sequence[Stage], given: Sequence[np.ndarray]) -> list[Verdict]:
    """Checks every stage, and says on stderr every few seconds how far it is."""
    found: list[Verdict] = []
    told = time.monotonic()
    for verdict in check_stages(stages, given):
        found.append(verdict)
        if time.monotonic() - told > SECONDS:
            told = time.monotonic()
            common.progress(f"checked stage {verdict.stage} on inputs of kind {verdict.kind!r}")
    return found


def _print_check(verdicts: Sequence[Verdict]) -> None:
    """Prints the largest error of every stage on each kind of inputs, and if all are right."""
    kinds = list(dict.fromkeys(v.kind for v in verdicts if v.kind != "memory"))
    rows: list[list[object]] = []
    for stage in dict.fromkeys(v.stage for v in verdicts):
        held = [v for v in verdicts if v.stage == stage]
        cells = {v.kind: Loud("wrong") if v.problem else v.error for v in held}
        rows.append([stage, *(cells.get(kind) for kind in kinds)])
    print(f"\n{table(['largest error', *kinds], rows)}")
    if all(not v.problem for v in verdicts):
        print("every stage computes the same as the program; no buffers overlap")


def print_stages(record: Run) -> None:
    """Prints the text of every stage."""
    for stage in record.records:
        print(f"\n// ---- {stage.name}\n{stage.text.rstrip()}")


def output_folder(name: str) -> Path:
    """Creates a folder to write to. Raises UsageError if that is impossible."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o takes a folder; {name}: {error.strerror}") from error
    return Path(name)
