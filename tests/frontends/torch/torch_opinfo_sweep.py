"""Every sample of torch's table of ops, in processes of their own.

A crash, a stop by the time limit or a lack of memory is a failure of the sample that it came from,
and the next sample goes on in a new process. Results are lines of JSON, one for each op, written as
they come: a second run with the same file does what is left. What is right: at most twice eager's
error against f64, three times in 16 bits, or the floor that `torch_opinfo.Comparison` names.

    python torch_opinfo_sweep.py RESULTS [--samples 0] [--dtype float32] [--backend mlir] [OP ...]
    python torch_opinfo_sweep.py RESULTS --backend triton --device cuda --jobs 16 --samples 3
    python torch_opinfo_sweep.py RESULTS --backend cuda --compile-only --samples 1
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch_opinfo import (
    Execute,
    Report,
    backend_execute,
    check_sample,
    compile_execute,
    full_name,
    interpreter,
    ops,
    samples,
    table,
)

from stack.errors import POISONED, is_device_lost

MEMORY = 12 << 30  # bytes of address space of a process; CUDA maps more than it uses


def executor(args: argparse.Namespace) -> Execute:
    if args.backend == "interpreter":
        return interpreter
    return compile_execute(args.backend) if args.compile_only else backend_execute(args.backend)


def work(pipe: Connection, args: argparse.Namespace) -> None:
    """Answers (op, first sample) with the report so far after each sample, then with None."""
    if args.device == "cpu":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {full_name(op): op for op in ops(getattr(torch, args.dtype))}
    execute = executor(args)
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        name, start = asked
        report = Report(name)
        try:
            dtype = getattr(torch, args.dtype)
            found = samples(known[name], args.samples or None, dtype, args.backward)
        except Exception as error:
            report.other[f"no samples: {error}"] += 1
            found = []
        for sample in found[start:]:
            signal.alarm(args.seconds)
            check_sample(known[name], sample, report, execute, args.device)
            signal.alarm(0)
            pipe.send(report)
            if report.failed and is_device_lost(report.failed[-1]):
                pipe.close()
                os._exit(POISONED)
        pipe.send(report)
        pipe.send(None)


@dataclass
class Worker:
    """A process and the op that it works on."""

    args: argparse.Namespace
    whole: Report

    def start(self) -> None:
        """A new process goes on after the samples that are known."""
        # where CUDA has been looked for, it cannot be used after a fork
        context = mp.get_context("fork" if self.args.device == "cpu" else "spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.args), daemon=True)
        self.process.start()
        theirs.close()
        self.ready = False

    def take(self, report: Report) -> None:
        """Work on another op."""
        self.whole, self.part = report, Report(report.name)
        self.pipe.send((report.name, report.total))

    def receive(self) -> Report | None:
        """The whole report once the op is done."""
        try:
            received = self.pipe.recv()
        except (EOFError, ConnectionError):
            self._ended()
            return None
        if received == "ready":
            self.ready = True
            self.take(self.whole)
            return None
        if received is not None:
            self.part = received
            return None
        add(self.whole, self.part)
        return self.whole

    def _ended(self) -> None:
        self.process.join()
        if not self.ready:
            raise RuntimeError("a process that checks samples ended before it began")
        add(self.whole, self.part)
        code = self.process.exitcode or 0
        reason = signal.Signals(-code).name if code < 0 else f"exit {code}"
        if code != POISONED:
            text = f"the process ended with {reason} at sample {self.whole.total}"
            self.whole.failed.append(text)
        self.start()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def check_all(names: Iterable[str], args: argparse.Namespace) -> Iterator[Report]:
    """Yields the outcomes of all samples of every op, as they come."""
    left = iter(names)
    workers: list[Worker] = []
    for _, name in zip(range(args.jobs), left):
        workers.append(Worker(args, Report(name)))
        workers[-1].start()
    end = time.monotonic() + args.total if args.total else None
    while workers:
        if end is not None and time.monotonic() > end:
            break
        ready = wait([w.pipe for w in workers], 1)
        for worker in [w for w in workers if w.pipe in ready]:
            done = worker.receive()
            if done is None:
                continue
            yield done
            following = next(left, None)
            if following is None:
                worker.close()
                workers.remove(worker)
            else:
                worker.take(Report(following))
    for worker in workers:
        worker.close()


def check(op: Any, args: argparse.Namespace) -> Report:
    """The outcomes of all samples of an op."""
    (report,) = check_all([full_name(op)], args)
    return report


def add(whole: Report, part: Report) -> None:
    whole.passed += part.passed
    whole.failed += part.failed
    whole.fallback += part.fallback
    whole.other += part.other
    whole.floor += part.floor


def to_json(report: Report) -> str:
    return json.dumps(
        {
            "op": report.name,
            "passed": report.passed,
            "failed": report.failed,
            "fallback": report.fallback,
            "other": report.other,
            "floor": report.floor,
        }
    )


def from_json(line: str) -> Report:
    row = json.loads(line)
    counts = Counter(row["fallback"]), Counter(row["other"])
    floor = [(ours, eager) for ours, eager in row["floor"]]
    return Report(row["op"], row["passed"], row["failed"], *counts, floor)


def options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Samples of torch's table of ops, isolated.")
    parser.add_argument("results", type=Path, help="lines of JSON, made or continued")
    parser.add_argument("--samples", type=int, default=0, help="of each op; 0: all")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--backend", default="mlir")
    parser.add_argument("--device", default="cpu", help="where eager runs")
    parser.add_argument("--backward", action="store_true", help="gradients too")
    parser.add_argument("--compile-only", action="store_true", help="for a GPU; compares nothing")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=int, default=300, help="that one sample may take")
    parser.add_argument("--total", type=int, default=0, help="seconds for all; 0: no limit")
    parser.add_argument("ops", nargs="*", help="names; none: all")
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str]) -> None:
    args = options(argv)
    lines = args.results.read_text().splitlines() if args.results.exists() else []
    reports = [from_json(line) for line in lines]
    done = {r.name for r in reports}
    names = [full_name(op) for op in ops(getattr(torch, args.dtype), args.backward)]
    names = [n for n in names if n not in done and (not args.ops or n in args.ops)]
    with args.results.open("a") as file:
        for report in check_all(names, args):
            reports.append(report)
            file.write(to_json(report) + "\n")
            file.flush()
    print(table(reports))
    missing = set(names) - {r.name for r in reports}
    if missing:
        print(f"{len(missing)} ops not reached in {args.total} s: {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main(sys.argv[1:])
