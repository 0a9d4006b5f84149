"""The GEMM ladder: six schedules of one matmul, each printed, checked, compiled and timed.

    python -m stack.demos.gemm_ladder                  IR and CUDA of every rung, then a table
    python -m stack.demos.gemm_ladder --only pipelined --size 8192
    python -m stack.demos.gemm_ladder --table --json ladder.json

Without a GPU, every rung is checked in the interpreter on a small matmul and compiled by NVRTC.
With one, all rungs and cuBLAS run interleaved, timed by CUDA events.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stack.backends.cuda import nvrtc
from stack.backends.cuda.printer import print_kernel
from stack.backends.cuda.values import Source
from stack.explore.table import table
from stack.ir import Func, Node, parse, verify
from stack.ir.data import round_bf16
from stack.measure.timing import quantile
from stack.rewrite.pipeline import Pipeline
from stack.target import load

SCHEMA = "stack.ladder/1"
CHECKED = (40, 48, 264)  # rows, columns and depth of the matmul that the interpreter runs
TARGET = "sm_90"
ROUNDS = 9
FLUSHED = 256 << 20  # bytes written between two matmuls, more than the cache holds
TOLERANCE = 2**-7  # two roundings to bf16, relative to the largest result


@dataclass(frozen=True)
class Rung:
    """One schedule of the matmul, and what it adds to the schedule before it."""

    name: str
    schedule: str
    adds: str


PASSES = "schedule{loops=warps},blocks,distribute_gpu"
STAGED = "sm_80"  # its warps multiply independently; on later GPUs they cooperate
LADDER = (
    Rung(
        "naive",
        "m=32@grid m=1@lane n=32@grid",
        "a thread for each element; lanes go down a column",
    ),
    Rung(
        "coalesced",
        "m=32@grid n=32@grid n=1@lane",
        "lanes go along a row: one access serves a warp",
    ),
    Rung(
        "shared",
        "m=32@grid n=32@grid n=1@lane k=32@serial stages=1",
        "blocks of both operands in shared memory, read by 32 threads each",
    ),
    Rung(
        "register",
        "m=128@grid m=8@unroll n=128@grid n=8@unroll k=16@serial stages=1",
        "8 x 8 sums in each thread's registers",
    ),
    Rung(
        "tensor",
        "m=128@grid n=128@grid k=32@serial stages=1",
        "tensor cores: ldmatrix and mma.sync, sums of 32 x 128 in a warp",
    ),
    Rung(
        "pipelined",
        "m=128@grid n=128@grid k=32@serial stages=3",
        "cp.async brings later blocks while this one is multiplied",
    ),
)


def matmul(rows: int, columns: int, depth: int) -> Func:
    """Returns the program of the ladder."""
    return parse(f"""
func @matmul(%a: bf16[{rows}, {depth}], %b: bf16[{depth}, {columns}])
    -> (bf16[{rows}, {columns}]) at tensor {{
  %c = dot(%a, %b) {{rule="m k, k n -> m n"}} : bf16[{rows}, {columns}]
  return %c
}}
""")


def lowered(rung: Rung, func: Func) -> Func:
    """Lowers the program to the loop level with a rung's schedule."""
    given = {"c": rung.schedule}
    found = Pipeline(PASSES).run(func, target=load(STAGED), schedules=given).func
    verify(found)
    assert parse(str(found)) is found
    return found


def kernel_of(func: Func) -> Node:
    (kernel,) = (n for n in func.nodes if n.op == "kernel")
    return kernel


def check(rung: Rung, seed: int = 0) -> float:
    """Returns the largest error in the interpreter on a small matmul, relative to the largest
    result.

    Raises AssertionError if rounding does not explain it.
    """
    rows, columns, depth = CHECKED
    rng = np.random.default_rng(seed)
    a = round_bf16(rng.standard_normal((rows, depth)).astype(np.float32))
    b = round_bf16(rng.standard_normal((depth, columns)).astype(np.float32))
    want = a.astype(np.float64) @ b.astype(np.float64)
    found = lowered(rung, matmul(rows, columns, depth)).interpret(a, b)
    error = float(np.abs(found - want).max() / np.abs(want).max())
    assert error <= TOLERANCE, f"{rung.name}: off by {error} of the largest result"
    return error


def build(rung: Rung, size: int, target: str) -> tuple[Func, Source, nvrtc.Binary]:
    """Returns a square matmul with a rung's schedule: loop level, CUDA C++ and machine code."""
    func = lowered(rung, matmul(size, size, size))
    source = print_kernel(kernel_of(func), f"matmul_{rung.name}", readable=True)
    return func, source, nvrtc.compile_cubin(source.text, source.name, target)


def kernel_text(source: Source) -> str:
    """Returns the kernel without the device functions before it."""
    return source.text[source.text.index('extern "C"') :]


Timed = dict[str, tuple[list[float], float]]  # milliseconds, error


def race(built: dict[str, tuple[Source, nvrtc.Binary]], size: int, rounds: int) -> Timed:
    """Times every rung and cuBLAS on this GPU, interleaved in each round; in milliseconds."""
    import torch

    from stack.backends.cuda.launch import loaded

    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(0)
    shape, kind = (size, size), torch.bfloat16
    a = torch.randn(shape, generator=generator, device=device).to(kind)
    b = torch.randn(shape, generator=generator, device=device).to(kind)
    want = (a[:256].double() @ b.double()).float()
    out = torch.empty(shape, device=device, dtype=kind)
    flush = torch.empty(FLUSHED, dtype=torch.int8, device=device)
    calls: dict[str, Callable[[], Any]] = {"cublas": lambda: torch.mm(a, b, out=out)}
    for name, (source, binary) in built.items():
        launch = loaded(source, binary, device)
        calls[name] = lambda launch=launch: launch([a, b], [out])
    found: Timed = {}
    for name, call in calls.items():
        out.zero_()
        call()
        error = (out[:256].float() - want).abs().max() / want.abs().max()
        found[name] = ([], float(error))
        if not float(error) <= TOLERANCE:
            raise AssertionError(f"{name}: off by {float(error)} of the largest result")
    for _ in range(rounds):
        for name, call in calls.items():
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            found[name][0].append(start.elapsed_time(end))
    return found


def has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def row_of(
    rung: Rung | None, binary: nvrtc.Binary | None, source: Source | None, size: int, timed: Timed
) -> dict[str, Any]:
    """Returns the result row of one schedule of the matmul; `rung` is None for cuBLAS."""
    name = rung.name if rung is not None else "cublas"
    row: dict[str, Any] = {"name": name, "kind": "generated" if rung is not None else "library"}
    if binary is not None and source is not None:
        row.update(
            registers=binary.registers,
            spilled=binary.spilled,
            shared=source.shared + source.static_shared,
            threads=source.threads,
            blocks=source.blocks,
        )
    if name in timed:
        times, error = timed[name]
        ms = quantile(times, 0.5)
        best = quantile(timed["cublas"][0], 0.5)
        row.update(
            ms=ms,
            spread=quantile(times, 0.75) - quantile(times, 0.25),
            tflops=2 * size**3 / ms * 1e-9,
            share_of_cublas=best / ms,
            error=error,
        )
    return row


def show(rows: Sequence[dict[str, Any]]) -> str:
    """Formats the rows as a table."""
    head = ["rung", "registers", "spilled", "shared", "threads", "checked", "ms", "Tflop/s",
            "of cuBLAS"]  # fmt: skip

    def cells(row: dict[str, Any]) -> list[object]:
        some: list[object] = [
            row.get(k, "-") for k in ("registers", "spilled", "shared", "threads")
        ]
        checked = f"{row['checked']:.1e}" if "checked" in row else "-"
        if "ms" not in row:
            return [row["name"], *some, checked, "-", "-", "-"]
        times = [
            f"{row['ms']:.3f}",
            f"{row['tflops']:.1f}",
            f"{100 * row['share_of_cublas']:.0f} %",
        ]
        return [row["name"], *some, checked, *times]

    return table(head, [cells(row) for row in rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the ladder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", type=int, default=4096, help="rows, columns and depth")
    parser.add_argument("--only", action="append", default=[], metavar="RUNG")
    parser.add_argument("--target", default=TARGET, help="the GPU to compile for, without one here")
    parser.add_argument("--table", action="store_true", help="no IR and no CUDA, only the table")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    args = parser.parse_args(argv)
    unknown = set(args.only) - {r.name for r in LADDER}
    if unknown:
        parser.error(f"no rung {min(unknown)!r}; there are: {', '.join(r.name for r in LADDER)}")
    need = nvrtc.missing_compiler()
    if need is not None:
        print(f"cannot compile: {need}", file=sys.stderr)
        return 5
    document = climb(args)
    if args.json:
        Path(args.json).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


def climb(args: argparse.Namespace) -> dict[str, Any]:
    """Checks and compiles the selected schedules of the matmul; times them if there is a GPU."""
    on_gpu = has_gpu()
    target, device = args.target, "none: compiled only"
    if on_gpu:
        import torch

        from stack.backends.cuda.launch import device_target

        target = device_target(torch.device("cuda"))
        device = torch.cuda.get_device_name()
    rungs = [r for r in LADDER if not args.only or r.name in args.only]
    built: dict[str, tuple[Source, nvrtc.Binary]] = {}
    errors: dict[str, float] = {}
    for rung in rungs:
        errors[rung.name] = check(rung)
        func, source, binary = build(rung, args.size, target)
        built[rung.name] = source, binary
        if not args.table:
            print(f"==== {rung.name}: {rung.adds}\n---- {rung.schedule}\n\n{func}")
            print(f"---- CUDA C++\n\n{kernel_text(source)}")
    timed = race(built, args.size, args.rounds) if on_gpu else {}
    rows = [row_of(r, built[r.name][1], built[r.name][0], args.size, timed) for r in rungs]
    for row in rows:
        row["checked"] = errors[row["name"]]
    if on_gpu:
        rows.append(row_of(None, None, None, args.size, timed))
    print(f"bf16 matmuls of {args.size}^3 for {target}; GPU: {device}")
    print("checked: error in the interpreter, on " + " x ".join(map(str, CHECKED)))
    print(show(rows))
    return {
        "schema": SCHEMA,
        "device": device,
        "target": target,
        "size": args.size,
        "versions": {"nvrtc": nvrtc.version()},
        "rows": rows,
    }


if __name__ == "__main__":
    raise SystemExit(main())
