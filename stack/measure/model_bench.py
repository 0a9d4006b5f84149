"""The suite of models: each program runs in its own process, with limits on time and memory."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from typing import Any

from stack.errors import StackError
from stack.explore.table import number, scaled, table
from stack.measure.bench import Bench, Row, by_case, entry_of, finish_rows
from stack.measure.caches import empty_caches
from stack.measure.child import ProcessLost, Worker
from stack.measure.compare import device_text
from stack.measure.gpu_ceilings import gpu_ceilings, gpu_text, load_torch
from stack.measure.roofline import Ceilings, measure_ceilings
from stack.measure.suite import Case
from stack.measure.systems import Say
from stack.measure.timing import ROUNDS, ratio_cell
from stack.run.specs import parse_backends

OWN = {"cpu": "mlir", "cuda": "triton"}
PATIENCE = 300.0  # seconds for one system to compile, run and be checked
MEMORY = 0.6  # share of this machine's memory for one program
SETTLE = 0.2  # seconds until work queued on a device is done
EXTRAS = ("peak_bytes", "kernels", "library", "fallback", "eager_error", "note")


class Attempt:
    """Runs one case in a process of its own; restarts it without each system that crashes it."""

    def __init__(self, bench: ModelBench, case: Case) -> None:
        self.bench, self.case = bench, case
        self.request = bench.request(case)
        self.lost: list[ProcessLost] = []
        self.held = ExitStack()
        self.worker: Worker | None = None

    def run(self) -> dict[str, Any] | None:
        """Compiles and checks all systems of the case, then times them while other cases pause.

        Returns the reply of the process, or None if it failed; `lost` has the errors.
        """
        try:
            while not self._prepared():
                pass
            return self._timed()
        except StackError as error:
            self.lost.append(
                error if isinstance(error, ProcessLost) else ProcessLost(str(error), {})
            )
            return None
        finally:
            self._end()

    def _prepared(self) -> bool:
        """Starts the process, which builds all systems; returns True once it can time them.

        Returns False if a system crashed it: the next process skips that system. Raises ProcessLost
        if the process ended otherwise, or if the time of the suite is over.
        """
        try:
            self._begin()
            return True
        except ProcessLost as lost:
            self._end()
            known = "kind" in lost.at and lost.at["at"] not in self.request["skip"]
            if not known or self.bench.is_over:
                raise
            self.lost.append(lost)
            self.request["skip"].append(str(lost.at["at"]))
            self.bench.say(f"{self.case.title}: {lost}; continuing without it in a new process")
            return False

    def _begin(self) -> None:
        folder = self.held.enter_context(tempfile.TemporaryDirectory(prefix="stack-models-"))
        environment = {**empty_caches(folder), **self.bench.environment}
        bench, title = self.bench, self.case.title
        with bench.clock:
            self.worker = Worker(
                lambda text: bench.say(f"{title}: {text}"),
                environment,
                "stack.measure.model_worker",
                bench.patience,
                bench.memory,
            )
            bench.live.append(self.worker)
        self.worker.tell(self.request)
        self.worker.answer()

    def _timed(self) -> dict[str, Any]:
        assert self.worker is not None
        with self.bench.alone(self.worker):
            self.worker.tell({})
            return self.worker.answer()["done"]

    def _end(self) -> None:
        """Ends the process and deletes its caches."""
        if self.worker is not None:
            self.bench.live.remove(self.worker)
            self.worker.close(2)
        self.worker = None
        self.held.close()


class ModelBench:
    """Runs the cases of the suite and collects their rows.

    Args:
        jobs: number of programs compiled at once. While one is timed, the others are stopped.
    """

    def __init__(
        self, device: str, peers: str | None, own: str | None, rounds: int, jobs: int, say: Say
    ) -> None:
        self.device, self.peers, self.rounds, self.jobs = device, peers, rounds, jobs
        self.own = own or OWN[device.partition(":")[0]]
        self.say = say
        self.patience = PATIENCE
        self.environment: dict[str, str] = {}
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.memory = int(MEMORY * total / max(1, jobs / 2))
        if jobs > 1:
            self.environment["TORCHINDUCTOR_COMPILE_THREADS"] = "2"
        self.is_over = False  # no new case starts
        self.clock = threading.Lock()
        self.live: list[Worker] = []
        self.found = Bench(self._machine(), self._ceilings())
        self.found.notes["first s"] = first_results(jobs)

    @contextmanager
    def alone(self, worker: Worker) -> Generator[None]:
        """Context in which only the process of `worker` runs; all others are suspended."""
        with self.clock:
            others = [w for w in self.live if w is not worker]
            for other in others:
                other.signal(signal.SIGSTOP)
            if others:
                time.sleep(SETTLE)
            try:
                yield
            finally:
                for other in others:
                    other.signal(signal.SIGCONT)

    def _machine(self) -> str:
        return device_text() if self.device == "cpu" else gpu_text(load_torch())

    def _ceilings(self) -> Ceilings:
        if self.device == "cpu":
            return measure_ceilings(True)
        torch = load_torch()
        found = gpu_ceilings(torch, kinds=("bf16", "f32"))
        torch.cuda.empty_cache()
        return found

    def request(self, case: Case) -> dict[str, Any]:
        """Returns the request that describes a case to its child process; see `ModelRun`."""
        return {
            "spec": case.spec,
            "options": case.options,
            "peers": case.peers if self.peers is None else self.peers,
            "own": self.own,
            "device": self.device,
            "rounds": self.rounds,
            "cold": False,
            "skip": [],
        }

    def run(self, cases: Sequence[Case], end: float | None) -> Iterator[list[Row]]:
        """Yields the rows of each case when they are ready; starts nothing after `end`."""
        left: list[str] = []

        def work(attempt: Attempt) -> dict[str, Any] | None:
            if self.is_over or (end is not None and time.monotonic() > end):
                left.append(attempt.case.title)
                return None
            self.say(attempt.case.title)
            return attempt.run()

        with ThreadPoolExecutor(self.jobs) as pool:
            attempts = {pool.submit(work, a): a for a in (Attempt(self, c) for c in cases)}
            try:
                for future in as_completed(attempts):
                    attempt = attempts[future]
                    if attempt.case.title not in left:
                        yield self._take(attempt, future.result())
            except BaseException:
                self.is_over = True
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in list(self.live):
                    worker.kill()
                raise
        if left:
            self.found.notes["left out, the budget is spent"] = ", ".join(left)

    def _take(self, attempt: Attempt, reply: dict[str, Any] | None) -> list[Row]:
        case = attempt.case
        rows: list[Row] = []
        for lost in attempt.lost:
            if "kind" not in lost.at:
                self.found.problems.append(f"{case.row} {case.title}: {lost}")
            else:
                self.found.fail(case, str(lost.at["at"]), str(lost))
                row = self._row(case, str(lost.at["at"]), str(lost.at["kind"]))
                row.update(is_ours=lost.at["is_ours"], note=str(lost))
                rows.append(row)
        if reply is None and not rows:
            row = self._row(case, f"stack-{self.own.split(',')[0]}", "generated")
            row.update(is_ours=True, note=str(attempt.lost[-1]))
            rows.append(row)
        for entry in (reply or {"entries": []})["entries"]:
            rows.append(self._entry(case, entry, reply or {}))
        self.found.rows.extend(rows)
        if case.kind == "run":
            finish_rows(self.found, rows)
        return rows

    def _row(self, case: Case, system: str, kind: str) -> Row:
        row = entry_of(case.row, case.case, system, kind)
        row.update(dict.fromkeys(EXTRAS))
        return row

    def _entry(self, case: Case, entry: dict[str, Any], reply: dict[str, Any]) -> Row:
        row = self._row(case, entry["system"], entry["kind"])
        same = ("ms", "spread", "rounds_ms", "compile_s", "is_ours", "peak_bytes", "note")
        row.update({k: entry[k] for k in (*same, "kernels", "library", "fallback")})
        row.update(error=entry["error"], eager_error=reply["usual"])
        row["limit_ms"] = self._limit(reply)
        if case.kind == "cold" and entry["compile_s"]:
            row.update(ms=1e3 * entry["compile_s"])
        if entry["problem"]:
            self.found.fail(case, entry["system"], entry["problem"])
            row.update(ms=None, spread=None, note=entry["problem"])
        return row

    def _limit(self, reply: dict[str, Any]) -> float | None:
        """Returns a lower bound of a program's milliseconds, or None if its work is unknown.

        It is the time of the contractions at peak rate, or of the bytes if that is longer.
        """
        if "bytes" not in reply:
            return None
        ceilings = self.found.ceilings
        peaks = {k.partition(".")[2]: v for k, v in reply.items() if k.startswith("flops.")}
        compute = sum(v / ceilings.of(k) for k, v in peaks.items() if self._known(k))
        moved = float(reply["bytes"])
        return 1e3 * max(compute, moved / ceilings.bytes_at(moved))

    def _known(self, dtype: str) -> bool:
        """True if the measured peak rate of `dtype` is an upper bound for matmuls of this type.

        It is not for f32 on a GPU, where matmuls may use the faster TF32.
        """
        return self.device == "cpu" or dtype == "bf16"

    def cold(self, case: Case) -> list[Row]:
        """Measures the time to the first result, each system in its own fresh process."""
        peers = case.peers if self.peers is None else self.peers
        rows: list[Row] = []
        ways = [(p.strip(), "") for p in self.own.split(",")]
        ways += [("", p.label) for p in parse_backends(peers) if p.backend != "eager"]
        for own, peer in ways:
            attempt = Attempt(self, case)
            attempt.request.update(own=own, peers=peer, cold=True)
            rows += self._take(attempt, attempt.run())
        finish_rows(self.found, rows)
        return rows


def first_results(jobs: int) -> str:
    """Returns the explanation of the column "first s" for `jobs` programs compiled at once."""
    also = f", while up to {jobs - 1} others compile: not comparable" if jobs > 1 else ""
    return (
        "the first result, from the imported model to the end of the first call, in a process where"
        f" each compiler has compiled one op before; caches are empty for each system{also}"
    )


def model_bench(
    cases: Sequence[Case],
    *,
    device: str = "cpu",
    peers: str | None = None,
    own: str | None = None,
    rounds: int = ROUNDS,
    jobs: int = 1,
    budget: float | None = None,
    say: Say = lambda _: None,
    show: Say = lambda _: None,
) -> Bench:
    """Runs the suite.

    Args:
        device: "cpu" or "cuda".
        peers, own: replace those of the cases, and our backend.
        jobs: see `ModelBench`.
        budget: seconds after which no new program starts.
        show: called with a table of each program as soon as it is done.

    Raises:
        BackendMissing: there is no GPU here.
    """
    say("measuring the ceilings of this machine")
    bench = ModelBench(device, peers, own, rounds, jobs, say)
    show(bench.found.device)
    end = None if budget is None else time.monotonic() + budget
    try:
        for rows in bench.run([c for c in cases if c.kind == "run"], end):
            show(listing(rows))
        for case in cases:
            if case.kind == "cold" and (end is None or time.monotonic() < end):
                show(listing(bench.cold(case)))
    except KeyboardInterrupt:
        bench.found.notes["interrupted"] = "only the rows so far"
    order = {f"{c.row} {c.case}": number for number, c in enumerate(cases)}
    bench.found.rows.sort(key=lambda r: order[f"{r['row']} {r['case']}"])
    return bench.found


def listing(rows: Sequence[Row]) -> str:
    """Formats every system of some programs: times, memory, errors, counts."""
    lines: list[list[object]] = []
    for case in by_case(rows):
        for row in case:
            lines.append(
                [
                    " ".join(str(v) for v in row["case"].values()),
                    row["system"],
                    None if row["ms"] is None else number(row["ms"]),
                    None if row["spread"] is None else number(row["spread"]),
                    ratio_cell(row["ratio_text"], row["system"].startswith("stack-")),
                    None if row["compile_s"] is None else number(row["compile_s"]),
                    scaled(row["peak_bytes"], "B"),
                    _error(row["error"]),
                    _error(row["eager_error"]),
                    row["kernels"],
                    row["library"],
                    row["fallback"],
                    row["note"],
                ]
            )
    head = ["program", "system", "ms", "spread", "best other / it", "first s", "peak", "error"]
    head = [*head, "eager's", "kernels", "library", "fallback", "note"]
    drop = ["eager's", "library", "kernels", "spread", "fallback", "peak", "first s", "note"]
    return table(head, lines, drop=drop)


def _error(value: Any) -> str | None:
    return f"{value:.1e}" if isinstance(value, float) else value
