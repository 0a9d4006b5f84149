"""The process that runs one model: builds every system, checks and times it.

It announces each step in advance. If it hangs, crashes or runs out of memory, its parent knows
which system failed.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from stack.errors import POISONED, is_device_lost
from stack.measure.compare import device_text
from stack.measure.model_check import errors_of, exact_results, judge, usual_results, worst
from stack.measure.model_systems import (
    Counts,
    ModelEntry,
    ModelProgram,
    ModelSystem,
    settle,
    torch_module,
    ways,
)
from stack.measure.roofline import least_bytes, matmul_flops
from stack.measure.runners import silence_stdout
from stack.measure.systems import first_line
from stack.measure.timing import Timing, interleave
from stack.run.frontend import Captured
from stack.run.trace import find_frontend

Tell = Callable[[dict[str, Any]], None]
Entry = dict[str, Any]
WARM = 0.1  # seconds of warm-up for each system


def program_of(spec: str, options: dict[str, Any]) -> ModelProgram:
    """Calls the factory `pkg.mod:name` of a case."""
    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)(**options)


class ModelRun:
    """One program: builds every system, checks it, times all together.

    Args:
        request: `spec`, `options`, `peers`, `own`, `device`, `rounds`. `skip` names systems that
            crashed the process before. `cold` is for one system alone: nothing is compiled before
            its measurement, and it is not timed afterwards.
    """

    def __init__(self, request: dict[str, Any], tell: Tell) -> None:
        self.request, self.tell = request, tell
        self.device = str(request["device"])
        self.torch = torch_module()
        self.entries: list[Entry] = []
        self.systems: list[tuple[ModelSystem, Entry]] = []
        self.exact: list[Any] = []
        self.usual: list[float] = []
        self.program: ModelProgram | None = None

    def build(self) -> None:
        """Builds the program, then compiles, runs once and checks every system; times only that."""
        peers, own = str(self.request["peers"]), str(self.request["own"])
        self.tell({"at": "the program"})
        self.program = program_of(self.request["spec"], self.request["options"])
        if self.request["cold"]:
            self.exact = usual_results(self.program, self.device)
            self.usual = [0.0 for _ in self.exact]
        else:
            self.tell({"at": "the first programs of all compilers"})
            settle(self.program.framework, peers, own, self.device)
            self._reference(self.program)
        for way in ways(self.program, peers, own, self.device, lambda: self.captured):
            if way.name not in self.request.get("skip", ()):
                self._make(way)
        self.exact = []
        self._tidy()
        gc.collect()
        gc.freeze()  # exempt the frameworks' objects from garbage collection in every round

    def _reference(self, program: ModelProgram) -> None:
        self.tell({"at": "the reference"})
        usual = usual_results(program, self.device)
        names = [_dtype(x) for x in usual]
        try:
            self.tell({"at": "the reference in double precision"})
            self.exact = exact_results(program, self.device)
            self.usual = errors_of(self.exact, usual)
        except Exception as error:
            self._check_device(error)
            self.tell({"note": f"errors are against eager: {first_line(error)}"})
            self.exact, self.usual = usual, [0.0 for _ in names]
        self._tidy()

    def _make(self, way: ModelEntry) -> None:
        """Compiles the program with one system, runs it once, and checks its results."""
        assert self.program is not None
        self.tell({"at": way.name, "kind": way.kind, "is_ours": way.is_ours})
        entry: Entry = {
            "system": way.name, "kind": way.kind, "is_ours": way.is_ours, "problem": "",
            "note": "", "error": None, "compile_s": None, "ms": None, "spread": None,
            "rounds_ms": None, "peak_bytes": None, "kernels": None, "library": None,
            "fallback": None,
        }  # fmt: skip
        self.entries.append(entry)
        before = self._allocated()
        try:
            system = way.make()
            entry["note"] = system.note
            with system.compiling():
                start = time.perf_counter()
                found = system.call()
                system.wait()
                entry["compile_s"] = time.perf_counter() - start
            results = system.leaves(found)
            errors = errors_of(self.exact, results)
            known = self.usual if len(self.usual) == len(errors) else [0.0 for _ in errors]
            entry["error"] = worst(errors, known)
            entry["problem"] = judge(errors, known, [_dtype(x) for x in results])
            del found, results
            entry["peak_bytes"] = self._peak(system, before)
            self._count(entry, system)
        except Exception as error:
            self._check_device(error)
            entry["problem"] = first_line(error)
            self._tidy()
            return
        self._tidy()
        if not entry["problem"]:
            self.systems.append((system, entry))

    def _count(self, entry: Entry, system: ModelSystem) -> None:
        try:
            found = system.count()
        except Exception as error:
            found = Counts()
            entry["note"] += f"; not counted: {first_line(error)}"
        entry.update(kernels=found.kernels, library=found.library, fallback=found.fallback)
        if system.is_ours and found.kernels is None:
            entry["note"] += "; no graph of it was compiled, the framework ran it"
        if found.fallback_ops:
            entry["note"] += f"; fallback: {found.fallback_ops}"
        if found.stepwise:
            whys = ", ".join(dict.fromkeys(found.stepwise))
            entry["note"] += f"; {len(found.stepwise)} launched step by step: {whys}"
        if system.is_ours and not found.kernels:
            entry["kind"] = "library"

    def _allocated(self) -> int:
        return int(self.torch.cuda.memory_allocated()) if self.device != "cpu" else 0

    def _peak(self, system: ModelSystem, before: int) -> int | None:
        """Returns the peak bytes of a call and of what the system keeps between calls.

        `before` are the bytes allocated before the system was built. Returns None if it is unknown.
        """
        own = system.peak()
        if own is not None:
            return own
        if self.device == "cpu":
            return None if system.is_ours else _host_peak(self.torch, system.call)
        cuda = self.torch.cuda
        system.wait()
        cuda.reset_peak_memory_stats()
        system.call()
        system.wait()
        return max(0, int(cuda.max_memory_allocated()) - before)

    def time(self) -> None:
        """Times all systems of the program that were built, interleaved in the same rounds."""
        if self.request["cold"]:
            return
        self.tell({"at": "timing of " + ", ".join(e["system"] for _, e in self.systems)})
        runs = [_repeat(system) for system, _ in self.systems]
        timings = interleave(runs, int(self.request["rounds"]), warm=WARM)
        for (_, entry), timing in zip(self.systems, timings, strict=True):
            if isinstance(timing, Timing):
                entry.update(ms=timing.median * 1e3, spread=timing.spread * 1e3)
                entry["rounds_ms"] = [1e3 * s for s in timing.rounds]
                continue
            self._check_device(timing)
            entry["problem"] = first_line(timing)

    @functools.cached_property
    def captured(self) -> Captured:
        """The program as captured by our frontend."""
        assert self.program is not None
        frontend = find_frontend(self.program.fn, self.program.args)
        return frontend.capture(self.program.fn, self.program.args)

    def work(self) -> dict[str, float]:
        """Returns flops of contractions by element type (`flops.f32`), and minimal bytes of
        traffic.

        Empty if the program was never captured as one graph.
        """
        if "captured" not in self.__dict__:
            return {}
        func = self.captured.func
        flops = {f"flops.{name}": value for name, value in matmul_flops(func).items()}
        return {**flops, "bytes": least_bytes(func)}

    def reply(self) -> dict[str, Any]:
        """Returns the measurements so far as the reply to the parent process."""
        usual = max((u for u in self.usual if u < 1), default=None)
        return {"entries": self.entries, "usual": usual, **self.work()}

    def _tidy(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.empty_cache()

    def _check_device(self, error: BaseException) -> None:
        if self.device != "cpu" and is_device_lost(error):
            raise error


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _repeat(system: ModelSystem) -> Callable[[int], float]:
    """Returns a function that calls a system `count` times and returns the total seconds."""

    def run(count: int) -> float:
        system.wait()
        start = time.perf_counter()
        for _ in range(count):
            system.call()
        system.wait()
        return time.perf_counter() - start

    return run


def _host_peak(torch: Any, call: Callable[[], Any]) -> int | None:
    """Returns the peak of torch's CPU memory in a call, by its profiler; None if it saw none."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # silences its startup message
    profiler = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        held = call()
    del held
    now = most = 0
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most or None


def serve() -> int:
    """Builds the program of the one request, waits for permission to time it, and replies."""
    out = silence_stdout()

    def tell(message: dict[str, Any]) -> None:
        out.write(json.dumps(_finite(message)) + "\n")
        out.flush()

    torch = torch_module()
    importlib.import_module("stack.frameworks.torch_private").allow_recompiles(1 << 12)
    cuda = torch.cuda.is_available()
    tell({"device": torch.cuda.get_device_name() if cuda else device_text()})
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    run = ModelRun(request, tell)
    try:
        run.build()
        tell({"ready": True})
        sys.stdin.readline()
        run.time()
    except Exception as error:
        lost = is_device_lost(error)
        tell({"failed": first_line(error), "lost": lost})
        return POISONED if lost else 1
    tell({"done": run.reply()})
    return 0


def _finite(value: Any) -> Any:
    """Converts infinities and nan to text, since JSON has none."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [_finite(v) for v in value]  # pyright: ignore
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(serve())
