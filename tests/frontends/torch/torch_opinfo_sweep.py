"""Every sample of torch's table of ops, each op in a process of its own.

A crash, a stop by the time limit or a lack of memory is a failure of the sample that it came from,
and the next sample goes on in a new process. Results are lines of JSON, one for each op, written as
they come: a second run with the same file does what is left.

    python torch_opinfo_sweep.py RESULTS [--samples 0] [--dtype float32] [--backend mlir] [OP ...]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch_opinfo import (
    Report,
    backend_execute,
    check_sample,
    full_name,
    interpreter,
    ops,
    samples,
    table,
)

MEMORY = 12 << 30  # bytes of address space of a process
SECONDS = 300  # of one sample


def work(pipe: Connection, op: Any, start: int, args: argparse.Namespace) -> None:
    """Samples of an op from one on; the report so far is sent after each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    execute = interpreter if args.backend == "interpreter" else backend_execute(args.backend)
    report = Report(full_name(op))
    try:
        found = samples(op, args.samples or None, getattr(torch, args.dtype))
    except Exception as error:
        report.other[f"no samples: {error}"] += 1
        found = []
    for sample in found[start:]:
        signal.alarm(SECONDS)
        check_sample(op, sample, report, execute)
        signal.alarm(0)
        pipe.send(report)
    pipe.send(report)
    pipe.send(None)


def check(op: Any, args: argparse.Namespace) -> Report:
    """What became of all samples of an op."""
    whole = Report(full_name(op))
    context = mp.get_context("fork")
    while True:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(theirs, op, whole.total, args))
        process.start()
        theirs.close()
        part = Report(whole.name)
        try:
            while (received := ours.recv()) is not None:
                part = received
            ended = True
        except EOFError:
            ended = False
        process.join()
        add(whole, part)
        if ended:
            return whole
        code = process.exitcode or 0
        reason = signal.Signals(-code).name if code < 0 else f"exit {code}"
        whole.failed.append(f"the process ended with {reason} at sample {whole.total}")


def add(whole: Report, part: Report) -> None:
    whole.passed += part.passed
    whole.failed += part.failed
    whole.fallback += part.fallback
    whole.other += part.other


def to_json(report: Report) -> str:
    return json.dumps(
        {
            "op": report.name,
            "passed": report.passed,
            "failed": report.failed,
            "fallback": report.fallback,
            "other": report.other,
        }
    )


def from_json(line: str) -> Report:
    row = json.loads(line)
    return Report(
        row["op"], row["passed"], row["failed"], Counter(row["fallback"]), Counter(row["other"])
    )


def options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Samples of torch's table of ops, isolated.")
    parser.add_argument("results", type=Path, help="lines of JSON, made or continued")
    parser.add_argument("--samples", type=int, default=0, help="of each op; 0: all")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--backend", default="mlir")
    parser.add_argument("ops", nargs="*", help="names; none: all")
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str]) -> None:
    args = options(argv)
    lines = args.results.read_text().splitlines() if args.results.exists() else []
    reports = [from_json(line) for line in lines]
    done = {r.name for r in reports}
    with args.results.open("a") as file:
        for op in ops(getattr(torch, args.dtype)):
            if full_name(op) in done or (args.ops and full_name(op) not in args.ops):
                continue
            reports.append(check(op, args))
            file.write(to_json(reports[-1]) + "\n")
            file.flush()
    print(table(reports))


if __name__ == "__main__":
    main(sys.argv[1:])
