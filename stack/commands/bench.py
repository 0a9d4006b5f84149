"""`stackc bench`: compare times with other compilers."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

from stack.commands import common
from stack.commands.compare import PARTITIONERS, names
from stack.errors import UsageError
from stack.measure.bench import SCHEMA, Bench, bench, describe
from stack.measure.compare import WAYS
from stack.measure.cpu import cpu_cases
from stack.measure.gpu import gpu_cases
from stack.measure.gpu_bench import gpu_bench, listing
from stack.measure.model_bench import model_bench
from stack.measure.models import model_cases
from stack.measure.ops import OWN as OPS_OWN
from stack.measure.ops import ops_cases
from stack.measure.plots import plot_all
from stack.measure.reproduce import write_reproducers
from stack.measure.sharding_suite import CASES, sharding_bench
from stack.measure.suite import Case, select
from stack.measure.timing import LEAST, ROUNDS
from stack.run.record import versions
from stack.run.specs import parse_backends

SUITES = {"cpu": cpu_cases, "gpu": gpu_cases}
MODELS = "models"
SHARDING = "sharding"
OPS = "ops"
DEVICES = {"cpu": "cpu", "gpu": "cuda"}
TEXT = f"""
    Time a suite, or one program, against other compilers and print ratios.

    All systems run in the same interleaved rounds (at least {LEAST}). The table shows medians and
    quartile ranges. Results are checked against double precision. Two ceilings, a matmul and a
    copy, are measured in the same run. Rows that we lose are printed too. A time below the floor
    of this machine is reported as impossible.

    suite cpu, rows:
      C1  transformer blocks (GPT-2, Llama), S = 128, 512, 2048, f32 and bf16
      C2  attention of 12 heads of 64, from plain matmuls and as the framework's own call
      C3  pointwise functions and norms, 512 rows
      C4  cold compile in fresh processes with empty caches: a block, then twelve equal blocks
      C5  odd sizes, 1 and 4 threads, strided arrays, compared with eager; use --via native
      C6  matmuls of C1's blocks with 1 to 2048 rows, and square ones; f32, bf16 and i8. For a
          breakdown of their time: python -m stack.demos.cpu_products

    suite gpu (needs an NVIDIA GPU), rows:
      G1, G2    attention forward, heads of 128 and of 64, S = 512 to 16384
      G4        variants of attention, from plain matmul, softmax and matmul; masks and sinks
      G5        decoding one token, grouped-query
      G6, G7    matmuls of LLM shapes; the same with the epilogues of an MLP
      G11, G12  norms, and their gradients
      G13, G14  softmax, cross-entropy; the last layer with its loss
      G20       whole blocks, forward and training step
      G21       cold compile in fresh processes with empty caches
      G22       convolutions with their bias and activation
      G23       gathers, their gradients, reductions, scalings
      G24       programs as users wrote them: T5's bias, masks as data, casts by
                hand, long keys, joined convolutions, norms of images,
                reductions over a middle axis

    suite models, on the CPU or (`models gpu`) on a GPU, rows:
      M1        unmodified models, forward: Hugging Face models with their default attention,
                torch's own modules, convolutional networks, speech, recommendation, JAX
                programs with scan, vmap and while; on a CPU the torch ones in f32 and bf16
      M2        their training steps (with --train)
      M3        time to the first result in a fresh process

    suite ops, on the CPU or (`ops gpu`) on a GPU, in the rows of the other suites: hosted
    operators. Generated code is compared with hand-written kernels, libraries and kernels of
    other projects.

    Each model of the suite models runs in its own process with a time and memory limit; results
    are printed as they arrive. --jobs 8 compiles eight at once and times them one after another.

    suite sharding: programs on a mesh of 8 ranks, compared with XLA, Shardy and DTensor by the
    bytes that a rank sends. Nothing is timed. The results of all ranks are compared with the
    unsharded program.

    All systems get the same naive source. `rivals` in --with stands for the libraries and
    hand-written kernels of a case. --backend triton,cuda times several of our backends. In G20
    all systems launch kernel by kernel, as Inductor's default mode does. To replay CUDA graphs
    in both, use --backend 'triton{{graph=true}}' with 'inductor{{mode=reduce-overhead}}'.

    examples:
      stackc bench gpu --quick --json > gpu.json
      stackc bench gpu --rows G4,G6 --with inductor,rivals --plot gpu
      stackc bench gpu --rows G6 --backend 'triton{{tune=true}}'     schedules by measurement
      stackc bench cpu --quick                        minutes: short cases, quick peers
      stackc bench cpu --rows C1 --only seq=512 --only dtype=f32
      stackc bench cpu --json > bench.json            everything; hours where TVM is tuned
      stackc bench cpu --rows C3 --csv c3.csv --plot c3.png
      stackc bench cpu --rows C1 --with 'tvm{{trials=512,cache=DIR}}' --via native
      stackc bench models --only family=text --only dtype=bf16
      stackc bench ops --quick                        a minute or two
      stackc bench models gpu --quick --train --json > train.json
      stackc bench model.py:net -i 'f32[8,128]' --with inductor,xla,eager
      stackc bench model.py:net -i 'f32[8,128]' --passes default --passes default,-fuse --with xla
"""


def add(subparsers: common.Subparsers) -> None:
    """Adds the arguments of `stackc bench`."""
    parser = common.command(subparsers, "bench", run, "ratios to other compilers", TEXT)
    common.add_target(parser, "a suite (cpu, gpu, ops, models, sharding), ")
    parser.add_argument(
        "device",
        nargs="?",
        choices=DEVICES,
        help="suites models, ops: device to run on (default: cpu)",
    )
    parser.add_argument("--train", action="store_true", help="suite models: training steps")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="suite models: compile N programs at once"
    )
    parser.add_argument("--rows", metavar="ROWS", help="rows of the suite, as C1,C4")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only cases with this value, such as seq=128; repeatable",
    )
    parser.add_argument(
        "--with",
        dest="peers",
        metavar="PEERS",
        help="systems to compare with, instead of the suite's peers",
    )
    parser.add_argument(
        "--via",
        choices=WAYS,
        help="suite cpu and programs: peers run our imported function (ir) or the user's (native)",
    )
    parser.add_argument("--backend", metavar="NAME", help="see `stackc backends`")
    common.add_passes(parser, several=True)
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        metavar="N",
        help="rounds of timing (default: %(default)s)",
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="start no new case after this time",
    )
    parser.add_argument("--quick", action="store_true", help="short cases; peers do not tune")
    parser.add_argument("--csv", metavar="FILE", help="write the rows as CSV")
    parser.add_argument("--plot", metavar="FILE", help="write plots (png, svg, pdf)")
    parser.add_argument(
        "--reproducers", metavar="DIR", help="write a standalone script for each peer that fails"
    )
    common.add_wide(parser)
    common.add_json(parser, SCHEMA)


def run(args: argparse.Namespace) -> int:
    """Runs the cases of a suite, or one program, and prints the measurements."""
    if args.target == SHARDING:
        return _run_sharding(args)
    # SIGTERM of a time limit is handled as an interrupt is: rows measured so far are printed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = _measured(args)
    if args.csv:
        Path(args.csv).write_text(found.as_csv(), encoding="utf-8")
    if args.plot:
        plot_all(found.rows, found.device, found.ceilings, args.plot)
    if args.reproducers:
        for path in write_reproducers(found.failures, Path(args.reproducers), versions()):
            common.progress(f"wrote {path}")
    if args.json:
        common.print_json(found.as_dict())
        for problem in found.problems:
            common.progress(problem)
    else:
        if _is_on_gpu(args):
            print(listing(found) + "\n")
        print(describe(found))
    return found.exit_code


def _is_on_gpu(args: argparse.Namespace) -> bool:
    return args.target == "gpu" or (args.target == OPS and args.device == "gpu")


def _measured(args: argparse.Namespace) -> Bench:
    """Runs the suite or the program and returns the measurements."""
    cases = cases_of(args)
    timing: dict[str, Any] = {
        "peers": args.peers,
        "rounds": args.rounds,
        "budget": args.budget,
        "say": common.progress,
    }
    if _is_on_gpu(args) or args.target == MODELS:
        for option in ("via", "passes"):
            if getattr(args, option):
                raise UsageError(
                    f"--{option} works only with programs and the suites cpu and ops on a CPU"
                )
    if args.target == MODELS:
        _ = parse_backends(args.peers or "")  # an unknown one is an error before hours of rows
        device = DEVICES[args.device or "cpu"]
        show = common.progress if args.json else _show
        return model_bench(
            cases, device=device, own=args.backend, jobs=args.jobs, show=show, **timing
        )
    if _is_on_gpu(args):
        own = args.backend or (OPS_OWN if args.target == OPS else None)
        return gpu_bench(cases, own=own, **timing)
    return bench(
        cases,
        backend=args.backend,
        passes=args.passes or ["default"],
        quick=args.quick,
        ways=[args.via] if args.via else WAYS,
        **timing,
    )


def _run_sharding(args: argparse.Namespace) -> int:
    if args.budget is not None:
        raise UsageError(
            f"--budget limits timing; the suite {SHARDING} times nothing, it counts bytes"
        )
    peers = names(PARTITIONERS if args.peers is None else args.peers)
    found = sharding_bench(CASES, peers, common.progress)
    if args.json:
        common.print_json(found.as_dict())
    else:
        print(found.text())
    return 1 if found.problems else 0


def _show(text: str) -> None:
    print(text + "\n", flush=True)


def cases_of(args: argparse.Namespace) -> list[Case]:
    """Returns the cases of a suite, or one case for a program."""
    if args.target == MODELS:
        cases = model_cases(DEVICES[args.device or "cpu"], args.train, args.quick)
        return select(cases, args.rows, args.only, args.quick)
    if args.target == OPS and not args.train and args.jobs == 1:
        cases = ops_cases(DEVICES[args.device or "cpu"], args.quick)
        return select(cases, args.rows, args.only, args.quick)
    if args.device or args.train or args.jobs != 1:
        raise UsageError(f"a device, --train and --jobs work only with the suite {MODELS}")
    if args.target in SUITES:
        return select(SUITES[args.target](args.quick), args.rows, args.only, args.quick)
    if args.rows or args.only:
        raise UsageError(
            f"--rows and --only work only with a suite: {', '.join((*SUITES, MODELS, OPS))}"
        )
    if ":" not in args.target:
        raise UsageError(
            f"{args.target!r} is neither a suite ({', '.join((*SUITES, MODELS, OPS, SHARDING))})"
            " nor a program (`file.py:name`)"
        )
    common.check_frontend(args.frontend)
    return [
        Case(
            "program",
            {"target": args.target},
            args.target,
            frontend=args.frontend,
            peers="inductor,xla,eager",
            inputs=tuple(args.input),
        )
    ]
