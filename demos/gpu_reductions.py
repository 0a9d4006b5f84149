"""Reductions on a GPU: each axis of arrays with 2 to 4 axes, as shares of a copy's bandwidth.

    python -m stack.demos.gpu_reductions [--mib 64,1024] [--jobs 6] [--json FILE]

Programs compile in several processes first. One process then times them one after another, with
kernels from the cache, while nothing else uses the GPU. A result may be twice as far from f64 as
eager's is; indices must be eager's. A small copy has a lower bandwidth than one of 1 GiB, since its
start counts: the second share is of an equal copy, one that moves as many bytes as the program.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import stack
from stack.errors import StackError
from stack.measure.gpu_ceilings import gpu_ceilings, gpu_text, load_torch
from stack.measure.gpu_timing import measure

OPS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, axis: x.sum(axis),
    "max": lambda x, axis: x.amax(axis),
    "argmax": lambda x, axis: x.argmax(axis),
    "mean": lambda x, axis: x.mean(axis),
    "var": lambda x, axis: x.var(axis),
    "norm": lambda x, axis: torch.linalg.vector_norm(x, dim=axis),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TAILS = ((4096,), (4095,), (512, 512), (64, 255, 129))  # the first axis follows from the size
LEAST, FROM = 0.8, 64  # the share to reach, from this many MiB on
Case = tuple[str, str, tuple[int, ...], int]


def cases(sizes: list[int]) -> Iterator[Case]:
    """Returns op, dtype, shape and axis of all programs with arrays of about these MiB."""
    for mib in sizes:
        for name, dtype in DTYPES.items():
            for tail in TAILS:
                row = torch.Size(tail).numel() * dtype.itemsize
                shape = (max(1, (mib << 20) // row), *tail)
                yield from ((op, name, shape, axis) for op in OPS for axis in range(len(shape)))


def copy_rate(mib: int) -> float:
    """Returns the bytes per second of a copy that reads and writes this many MiB together."""
    source = torch.empty(mib << 17, device="cuda", dtype=torch.float32).normal_()
    target = torch.empty_like(source)
    return (mib << 20) / measure(torch, lambda: target.copy_(source), 7, count=4)


def compile_one(case: Case) -> float:
    """Compiles one program, which fills the caches; returns the seconds."""
    start = time.perf_counter()
    stack.compile(*_program(case))
    return time.perf_counter() - start


def _program(case: Case) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """Returns a function and its argument."""
    op, name, shape, axis = case
    x = torch.empty(shape, device="cuda", dtype=DTYPES[name]).normal_()
    return lambda x: OPS[op](x, axis), x


def run(case: Case) -> dict[str, Any]:
    """Checks and times one program beside eager."""
    op, name, shape, axis = case
    reduced, x = _program(case)
    fn = stack.compile(reduced, x)
    found, theirs = fn(x), reduced(x)
    right = _is_right(found, theirs, lambda: reduced(x.double()))
    ours, eager = (measure(torch, lambda f=f: f(x), 7, count=4) for f in (fn, reduced))
    moved = x.nbytes + found.nbytes
    return {
        "op": op, "dtype": name, "shape": shape, "axis": axis, "mib": x.nbytes / 2**20,
        "ms": 1e3 * ours, "eager_ms": 1e3 * eager, "bytes": moved, "rate": moved / ours,
        "right": right, "kernels": len(fn.run.kernels),
    }  # fmt: skip


def _is_right(found: torch.Tensor, theirs: torch.Tensor, f64: Callable[[], torch.Tensor]) -> bool:
    """True if indices are eager's, and numbers at most twice as far from f64 as eager's are."""
    if not found.is_floating_point():
        return bool((found == theirs).all())
    true = f64()
    if not torch.equal(found.isnan(), theirs.isnan()):  # the variance of one element
        return False
    error, eager, size = (x.nan_to_num().abs().max() for x in (found - true, theirs - true, true))
    return bool(error <= 2 * eager + torch.finfo(found.dtype).eps * size)


def main(argv: list[str] | None = None) -> int:
    """Prints a line for each program as it ends; returns 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", default="1,64,1024", help="sizes of arrays (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=4, help="processes that compile")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    args = parser.parse_args(argv)
    try:
        load_torch()
    except StackError as error:
        parser.exit(5, f"{error}\n")
    copy = gpu_ceilings(torch).bytes
    print(f"{gpu_text(torch)}; a copy moves {copy / 1e9:.0f} GB/s", flush=True)
    sizes = [int(size) for size in args.mib.split(",")]
    todo, equal = list(cases(sizes)), {size: copy_rate(size) for size in sizes}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, context) as pool:
        for done in as_completed([pool.submit(compile_one, case) for case in todo]):
            done.result()
    rows: list[dict[str, Any]] = []
    for case in todo:
        row = run(case)
        row["share"] = row["rate"] / copy
        row["share_of_equal"] = row["rate"] / equal[min(sizes, key=lambda s: abs(s - row["mib"]))]
        rows.append(row)
        print(line(row), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows), encoding="utf-8")
    large = [r for r in rows if r["mib"] > 0.9 * FROM]
    slow = [r for r in large if r["share"] < LEAST]
    wrong = [r for r in rows if not r["right"]]
    small = [r for r in large if r["share_of_equal"] < LEAST]
    behind = [r for r in large if r["ms"] > 1.02 * r["eager_ms"]]
    print(f"{len(rows)} programs, {len(wrong)} wrong; of {len(large)} from {FROM} MiB on,"
          f" {len(slow)} below {LEAST:.0%} of a copy of 1 GiB, {len(small)} of a copy of as many"
          f" bytes, {len(behind)} slower than eager")  # fmt: skip
    print("\n".join(line(r) for r in (*wrong, *slow)))
    return int(bool(wrong))


def line(row: dict[str, Any]) -> str:
    """Formats a row."""
    shape = "x".join(map(str, row["shape"]))
    verdict = "" if row["right"] else "  WRONG"
    return (
        f"{row['op']:7} {row['dtype']:5} {shape:18} axis {row['axis']}  {row['ms']:8.3f} ms"
        f"  {row['share']:5.0%} of a copy, {row['share_of_equal']:5.0%} of an equal one"
        f"  {row['eager_ms'] / row['ms']:6.2f}x of eager{verdict}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
