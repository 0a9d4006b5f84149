"""The GPU suite: cases in a worker process that is started again where the device is lost."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stack.errors import StackError
from stack.measure.bench import Bench, entry_of, finish_rows
from stack.measure.cold import CACHES
from stack.measure.gpu_ceilings import COPY, load_torch
from stack.measure.gpu_program import EXP_RATE
from stack.measure.roofline import Ceilings
from stack.measure.suite import Case
from stack.measure.systems import Say
from stack.measure.timing import ROUNDS

OWN = "triton"
JAX_SHARE = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4",
}
PATIENCE = 240.0  # seconds without a word after which a worker hangs


class Lost(StackError):
    """A worker ended, or does not answer. `at` is what it was about to do."""

    def __init__(self, why: str, at: str) -> None:
        super().__init__(f"{why} at {at}" if at else why)
        self.at = at


class Worker:
    """A process that runs cases on the device."""

    def __init__(self, say: Say, environment: Mapping[str, str] | None = None) -> None:
        self.say = say
        self.at = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stack.measure.gpu_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # JAX keeps what it once took: it shall leave most of the device to torch
            env={**JAX_SHARE, **(environment or os.environ)},
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()
        self.device = str(self._next()["device"])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = [*self.errors[-20:], line.strip()]

    def _next(self) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=PATIENCE)
        except queue.Empty:
            self.close()
            raise Lost(f"no word for {PATIENCE:.0f} seconds", self.at) from None
        if not line:
            code = self.process.wait()
            last = next((e for e in reversed(self.errors) if e), "no message")
            raise Lost(f"the process ended with {code} ({last[:200]})", self.at)
        return json.loads(line)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request. Raises Lost, or StackError for a case that cannot be run."""
        assert self.process.stdin is not None
        self.at = ""
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Lost(f"the process does not listen: {error}", self.at) from error
        while True:
            message = self._next()
            if "at" in message:
                self.at = str(message["at"])
            elif "note" in message:
                self.say(str(message["note"]))
            elif "failed" in message:
                if message["lost"]:
                    raise Lost(str(message["failed"]), self.at)
                raise StackError(str(message["failed"]))
            else:
                return message["done"]

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class GpuBench:
    """Runs cases and collects their rows."""

    def __init__(self, own: str, peers: str | None, rounds: int, say: Say) -> None:
        self.own, self.peers, self.rounds, self.say = own, peers, rounds, say
        self.worker = Worker(say)
        self.found = Bench(self.worker.device, self._ceilings())
        self.work: list[tuple[dict[str, Any], dict[str, float]]] = []

    def _ceilings(self) -> Ceilings:
        rates = self.worker.ask({"ceilings": True})
        flops, copied = float(rates["flops"]), float(rates["bytes"])
        return Ceilings({"bf16": flops}, {COPY: copied}, 0, str(rates["how"]))

    def _request(self, case: Case) -> dict[str, Any]:
        return {
            "spec": case.spec,
            "options": case.options,
            "peers": case.peers if self.peers is None else self.peers,
            "own": self.own,
            "rounds": self.rounds,
        }

    def run(self, case: Case) -> None:
        """Time one case; systems that take the device down get a row that says so."""
        skip: list[str] = []
        while True:
            try:
                reply = self.worker.ask({**self._request(case), "skip": skip})
                break
            except Lost as lost:
                self.found.problems.append(f"{case.row} {case.title}: {lost}")
                self.say(f"{lost}; a new process goes on")
                self.worker.close()
                self.worker = Worker(self.say)
                names = [*skip, lost.at]
                if lost.at in skip or not self._is_system(case, lost.at):
                    return
                skip = names
                self._lost_row(case, lost.at)
            except StackError as error:
                self.found.problems.append(f"{case.row} {case.title}: {error}")
                return
        for entry in reply["entries"]:
            self._take(case, entry, reply)

    def _is_system(self, case: Case, at: str) -> bool:
        return bool(at) and not at.startswith(("the ", "timing"))

    def _lost_row(self, case: Case, system: str) -> None:
        row = entry_of(case.row, case.case, system, "generated")
        row["is_ours"] = system.startswith("stack-")
        self.found.rows.append(row)

    def _take(self, case: Case, entry: dict[str, Any], reply: dict[str, Any]) -> None:
        row = entry_of(case.row, case.case, entry["system"], entry["kind"])
        row.update(
            ms=entry["ms"],
            spread=entry["spread"],
            compile_s=entry["compile_s"],
            error=None if entry["problem"] else entry["error"],
            is_ours=entry["is_ours"],
            peak_bytes=entry["peak_bytes"],
            note=entry["note"],
        )
        row.update({key: reply[key] for key in ("flops", "bytes", "exps")})
        if entry["problem"]:
            what = f"{case.row} {case.title}: {entry['system']}: {entry['problem']}"
            self.found.problems.append(what)
            row["note"] = entry["problem"]
        self.found.rows.append(row)

    def cold(self, case: Case) -> None:
        """Compile times, every system in a fresh process with empty caches."""
        request = self._request(case)
        names = [f"stack-{p.strip()}" for p in self.own.split(",")]
        peers = [p.strip() for p in str(request["peers"]).split(",")]
        ways = [(n, n.removeprefix("stack-"), "") for n in names] + [(p, "", p) for p in peers]
        for name, own, peer in ways:
            self.say(f"{name}: {case.title} in a fresh process")
            row = entry_of(case.row, case.case, name, "peer" if peer else "generated")
            row["is_ours"] = not peer
            try:
                taken = _cold_seconds({**request, "own": own, "peers": peer, "cold": True})
                row.update(compile_s=taken, ms=taken * 1e3)
            except StackError as error:
                self.found.problems.append(f"{case.row} {case.title}: {name}: {error}")
            self.found.rows.append(row)

    def finish(self) -> Bench:
        """Ceilings again, then ratios and shares."""
        self.say("measuring the ceilings again")
        try:
            self.found.ceilings = self.found.ceilings.or_better(self._ceilings())
        except StackError as error:
            self.found.problems.append(f"ceilings: {error}")
        self.worker.close()
        for row in self.found.rows:
            limit = limit_of(row, self.found.ceilings)
            if limit:
                row["limit_ms"] = limit * 1e3
        finish_rows(self.found)
        return self.found


def limit_of(row: Mapping[str, Any], ceilings: Ceilings) -> float:
    """Seconds that no implementation beats: tensor cores, exponentials or bytes; 0 if unknown."""
    flops, moved, exps = (float(row.get(k) or 0) for k in ("flops", "bytes", "exps"))
    return max(flops / ceilings.of("bf16"), exps / EXP_RATE, moved / ceilings.bytes)


def _cold_seconds(request: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory(prefix="stack-cold-") as folder:
        environment = dict(os.environ)
        for name in CACHES:
            environment[name] = str(Path(folder, name.lower()))
        worker = Worker(lambda _: None, environment)
        try:
            reply = worker.ask(request)
        finally:
            worker.close()
    entry = reply["entries"][0]
    if entry["problem"]:
        raise StackError(entry["problem"])
    return float(entry["compile_s"])


def gpu_bench(
    cases: Sequence[Case],
    *,
    peers: str | None = None,
    own: str | None = None,
    rounds: int = ROUNDS,
    say: Say = lambda _: None,
) -> Bench:
    """Run every case of the GPU suite.

    Args:
        peers: replaces those of the cases.
        own: our backends, as `triton,cuda`.

    Raises:
        BackendMissing: there is no GPU here.
    """
    load_torch()
    say("measuring what this GPU can do")
    bench = GpuBench(own or OWN, peers, rounds, say)
    for number, case in enumerate(cases, 1):
        say(f"{case.row} {case.title} ({number} of {len(cases)})")
        if case.kind == "cold":
            bench.cold(case)
        else:
            bench.run(case)
    return bench.finish()
