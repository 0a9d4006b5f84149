"""The story of the main demo: two blocks, two frameworks, every stage, and the other compilers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import stack
from stack.calls.graph import CompiledGraph
from stack.explore.dump import coverage_line, stage_table
from stack.ir.func import Func
from stack.measure.compare import compare, describe, device_text
from stack.measure.kernels import kernel_report, kernel_times, widest_dtype
from stack.measure.roofline import measure_ceilings
from stack.measure.systems import BenchProgram, capture_program
from stack.measure.timing import NOISY
from stack.run.backend import Executable
from stack.run.record import Run
from stack.run.specs import parse_backends
from stack.run.trace import find_frontend

Target = tuple[Any, tuple[Any, ...]]
FRONTENDS = ("torch", "jax")
# tuning is slow: TVM gets seconds here, and one block; `stackc compare` takes any budget
PEERS = {"llama_block": "inductor,xla,tvm{seconds=10},eager", "gpt2_block": "inductor,xla,eager"}
TOLERANCE = 1e-5
ROUNDS = 15
NEXT = """what to try next:
  stackc show runs/llama_block-torch fused          the fusion groups, as text
  stackc diff runs/llama_block-torch:canonical runs/llama_block-torch:fused
  stackc where runs/llama_block-torch softmax       from a source line to kernels, and back
  stackc compare demos/transformer.py:gpt2_block --with 'tvm{seconds=60},inductor,xla'
  stackc passes                                     what ran, and its options
"""


def tell(blocks: Mapping[str, Callable[..., Target]], argv: Sequence[str] | None = None) -> int:
    """Compiles, checks and races the given blocks; returns 1 if a check failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m stack.demos.transformer", description=__doc__)
    parser.add_argument("--block", choices=blocks, help="one block instead of both")
    parser.add_argument("--quick", action="store_true", help="leave the other compilers out")
    parser.add_argument("-o", "--output", default="runs", help="folder of the dumps")
    args = parser.parse_args(argv)
    failed = 0
    print(
        f"on {device_text()}\nratios are valid only on this machine; one that varies by more than"
        f" {100 * NOISY:.0f} % between rounds is shown as noisy"
    )
    for name in [args.block] if args.block else list(blocks):
        programs: list[BenchProgram] = []
        for frontend in FRONTENDS:
            say(f"{name} from {frontend}: compiling, then interpreting every stage")
            fn, example = blocks[name](frontend=frontend)
            failed += walk(name, frontend, fn, example, Path(args.output))
            captured_by = find_frontend(fn, example, frontend)
            programs.append(capture_program(captured_by, fn, example))
        if not args.quick:
            failed += race(name, programs)
    print(NEXT)
    return 1 if failed else 0


def say(text: str) -> None:
    """Prints progress to stderr, separate from the results."""
    print(f"... {text}", file=sys.stderr, flush=True)


def walk(name: str, frontend: str, fn: Any, example: tuple[Any, ...], output: Path) -> int:
    """Dumps one program, prints its tables, and checks its stages; returns the failed checks."""
    source = find_frontend(fn, example, frontend)
    captured = source.capture(fn, example)
    graph = CompiledGraph(captured, source, label=f"{name} ({frontend})")
    folder = graph.run.save(output / f"{name}-{frontend}")
    storage = graph.ready(captured.flatten(*example))
    eager = source.to_numpy(fn(*example), graph.func.results[0].dtype)
    wrong = check_stages(graph.run, storage, eager)
    print(f"\n==== {name} from {frontend}: {folder}\n")
    print(stage_table(graph.run.manifest()))
    print("\n".join(wrong) or "every IR stage parses back to the same object and agrees with eager")
    print()
    print(timed_kernels(graph.executable_for(storage), graph.func, storage))
    print(coverage_line(graph.run.coverage))
    return len(wrong)


def check_stages(run: Run, storage: Sequence[np.ndarray], eager: np.ndarray) -> list[str]:
    """Returns problems of the stages: text that does not parse back, values that differ."""
    wrong: list[str] = []
    for stage in run.records:
        if stage.func is None:
            continue
        if stack.parse(stage.text) is not stage.func:
            wrong.append(f"{stage.name}: the text does not parse back to the same function")
        found = np.asarray(stage.func.interpret(*storage))
        if not np.allclose(found, eager, rtol=TOLERANCE, atol=TOLERANCE):
            wrong.append(f"{stage.name}: differs by {np.abs(found - eager).max():.2g}")
    return wrong


def timed_kernels(executable: Executable, func: Func, storage: Sequence[np.ndarray]) -> str:
    """Reports every step: work, time, and its share of the machine's peak."""
    times = kernel_times(executable, storage)
    ceilings = measure_ceilings(quick=True)
    return kernel_report(executable.kernels, times, ceilings, widest_dtype(func))


def race(name: str, programs: Sequence[BenchProgram]) -> int:
    """Compares a program with other compilers; both frameworks' own compilers run natively."""
    peers = parse_backends(PEERS[name])
    # do not tune TVM again for the native program
    found = compare(programs, peers, target=name, rounds=ROUNDS, ir_only=("tvm",), say=say)
    try:
        print(f"\n==== {name} compared with other compilers (with {PEERS[name]})\n")
        print(describe(found))
        return 1 if found.exit_code == 1 else 0
    finally:
        found.close()
