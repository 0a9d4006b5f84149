"""The GPU suite: cases run in a worker process, which is restarted if the device is lost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stack.errors import StackError
from stack.explore.table import number, scaled, table
from stack.measure.bench import Bench, by_case, entry_of, finish_rows, line_of
from stack.measure.caches import empty_caches
from stack.measure.child import ProcessLost, Worker
from stack.measure.gpu_ceilings import COPY, load_torch
from stack.measure.gpu_program import EXP_RATE
from stack.measure.roofline import Ceilings
from stack.measure.suite import Case
from stack.measure.systems import Say
from stack.measure.timing import ROUNDS, ratio_cell

OWN = "triton"
COLD_RUNS = 2  # fresh processes per system; the first one also writes missing Python bytecode


class GpuBench:
    """Runs the cases of the GPU suite in a child process, and collects their result rows."""

    def __init__(
        self, own: str, peers: str | None, rounds: int, budget: float | None, say: Say
    ) -> None:
        self.own, self.peers, self.rounds, self.say = own, peers, rounds, say
        self.end = None if budget is None else time.monotonic() + budget
        self.worker = Worker(say)
        self.found = Bench(self.worker.device, self._ceilings())

    @property
    def is_spent(self) -> bool:
        """True if the time budget of the benchmark is used up, so that no new case starts."""
        return self.end is not None and time.monotonic() > self.end

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
        """Times one case; a system that crashes the device gets a row with the error."""
        if case.skip:
            self.found.skip(case, OWN)
            return
        skip: list[str] = []
        while True:
            try:
                reply = self.worker.ask({**self._request(case), "skip": skip})
                break
            except ProcessLost as lost:
                self.found.problems.append(f"{case.row} {case.title}: {lost}")
                self.say(f"{lost}; continuing in a new process")
                self.worker.close()
                self.worker = Worker(self.say)
                if "kind" not in lost.at or lost.at["at"] in skip:
                    return
                skip.append(str(lost.at["at"]))
                row = entry_of(case.row, case.case, skip[-1], str(lost.at["kind"]))
                row.update(is_ours=lost.at["is_ours"], note=str(lost))
                self.found.rows.append(row)
            except StackError as error:
                self.found.problems.append(f"{case.row} {case.title}: {error}")
                return
        before = len(self.found.rows)
        for entry in reply["entries"]:
            self._take(case, entry, reply)
        self.say(line_of(self.found.rows[before:]))
        if reply["spoiled"]:
            self.worker.close()
            self.worker = Worker(self.say)

    def _take(self, case: Case, entry: dict[str, Any], reply: dict[str, Any]) -> None:
        row = entry_of(case.row, case.case, entry["system"], entry["kind"])
        row.update(
            ms=entry["ms"],
            spread=entry["spread"],
            rounds_ms=entry["rounds_ms"],
            compile_s=entry["compile_s"],
            error=None if entry["problem"] else entry["error"],
            is_ours=entry["is_ours"],
            peak_bytes=entry["peak_bytes"],
            note=entry["note"],
        )
        row.update({key: reply[key] for key in ("flops", "bytes", "exps")})
        if entry["problem"]:
            self.found.fail(case, entry["system"], entry["problem"])
            row["note"] = entry["problem"]
        self.found.rows.append(row)

    def cold(self, case: Case) -> None:
        """Measures compile times, every system in fresh processes with empty caches.

        Systems alternate. After the budget is spent, systems that have a time are not run again.
        """
        request = self._request(case)
        ways = [(f"stack-{p.strip()}", p.strip(), "") for p in self.own.split(",")]
        ways += [(p.strip(), "", p.strip()) for p in str(request["peers"]).split(",")]
        rows: dict[str, dict[str, Any]] = {}
        times: dict[str, list[float]] = {name: [] for name, _, _ in ways}
        for turn in range(COLD_RUNS):
            for name, own, peer in ways:
                if turn and (self.is_spent or not times[name]):
                    continue
                self.say(f"{name}: {case.title} in a fresh process ({turn + 1} of {COLD_RUNS})")
                if not turn:
                    kind = "peer" if peer else "generated"
                    rows[name] = entry_of(case.row, case.case, name, kind)
                    rows[name]["is_ours"] = not peer
                    self.found.rows.append(rows[name])
                try:
                    asked = {**request, "own": own, "peers": peer, "cold": True}
                    times[name].append(_cold_seconds(asked))
                except StackError as error:
                    self.found.fail(case, name, str(error))
                    continue
                rows[name].update(_fastest(times[name]))

    def finish(self, is_cut: bool = False) -> Bench:
        """Measures the ceilings again if something was timed, then computes ratios and shares.

        `is_cut`: True after an interrupt, to return the rows at once.
        """
        timed = [r for r in self.found.rows if r["ms"] and r.get("flops")]
        if timed and not is_cut:
            self.say("measuring the ceilings again")
            try:
                self.found.ceilings = self.found.ceilings.or_better(self._ceilings())
            except StackError as error:
                self.found.problems.append(f"ceilings: {error}")
        self.worker.close(0 if is_cut else 20)
        for row in self.found.rows:
            limit = limit_of(row, self.found.ceilings)
            if limit:
                row["limit_ms"] = limit * 1e3
        finish_rows(self.found)
        return self.found


def listing(found: Bench) -> str:
    """Formats every system of every case: time, kind, share of the limit, error and more."""
    lines: list[list[object]] = []
    for rows in by_case(found.rows):
        title = " ".join(str(v) for v in rows[0]["case"].values())
        for row in rows:
            share, error = row["share_of_limit"], row["error"]
            lines.append(
                [
                    row["row"],
                    title,
                    row["system"],
                    row["kind"],
                    None if row["ms"] is None else number(row["ms"]),
                    None if row["spread"] is None else number(row["spread"]),
                    ratio_cell(row["ratio_text"], row["system"].startswith("stack-")),
                    None if share is None else f"{100 * share:.0f} %",
                    None if error is None else f"{error:.1e}",
                    scaled(row.get("peak_bytes"), "B"),
                    None if row["compile_s"] is None else number(row["compile_s"]),
                    row.get("note", ""),
                ]
            )
    head = [
        "row",
        "case",
        "system",
        "kind",
        "ms",
        "spread",
        "best other / it",
        "of limit",
        "error",
    ]
    drop = ["row", "peak", "compile s", "error", "kind", "spread", "note"]
    return table([*head, "peak", "compile s", "note"], lines, drop=drop)


def limit_of(row: Mapping[str, Any], ceilings: Ceilings) -> float:
    """Returns a lower bound of a row's seconds: the longest of three times, each at peak rate.

    They are those of its matmuls in bf16, of its exponentials, and of its memory traffic. Returns 0
    if its work is unknown.
    """
    flops, moved, exps = (float(row.get(k) or 0) for k in ("flops", "bytes", "exps"))
    return max(flops / ceilings.of("bf16"), exps / EXP_RATE, moved / ceilings.bytes)


def _fastest(times: Sequence[float]) -> dict[str, Any]:
    """Returns the row entries of the fastest of a system's compile times in fresh processes."""
    best = min(times)
    note = "fastest of fresh processes: " + ", ".join(f"{s:.2f} s" for s in times)
    return {"compile_s": best, "ms": best * 1e3, "note": note}


def _cold_seconds(request: dict[str, Any]) -> float:
    """Returns the seconds to compile a request's program in a fresh process with empty caches.

    Raises StackError with the problem if it cannot be compiled.
    """
    with tempfile.TemporaryDirectory(prefix="stack-cold-") as folder:
        worker = Worker(lambda _: None, empty_caches(folder))
        try:
            reply = worker.ask(request)
        except BaseException:
            worker.close(0)
            raise
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
    budget: float | None = None,
    say: Say = lambda _: None,
) -> Bench:
    """Runs every case of the GPU suite.

    Args:
        peers: replaces those of the cases.
        own: our backends, as `triton,cuda`.
        budget: seconds after which no new case starts; `notes` list the cases left out. An
            interrupt also ends the run, with the rows so far.

    Raises:
        BackendMissing: there is no GPU here.
    """
    load_torch()
    say("measuring the ceilings of this GPU")
    bench = GpuBench(own or OWN, peers, rounds, budget, say)
    for count, case in enumerate(cases, 1):
        left = ", ".join(f"{c.row} {c.title}" for c in cases[count - 1 :])
        if bench.is_spent:
            bench.found.notes[f"left out after {budget:g} seconds"] = left
            say(f"the budget is spent; left out: {left}")
            break
        say(f"{case.row} {case.title} ({count} of {len(cases)})")
        try:
            if case.kind == "cold":
                bench.cold(case)
            else:
                bench.run(case)
        except KeyboardInterrupt:
            bench.found.notes["interrupted, not finished"] = left
            return bench.finish(is_cut=True)
    return bench.finish()
