"""The process that runs GPU cases: prints a JSON line for each message to the bench.

A kernel fault destroys the whole CUDA context, so cases run in a separate process. It announces
each step in advance, so that its parent knows which system failed.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from stack.errors import POISONED, is_device_lost
from stack.measure.gpu_ceilings import gpu_ceilings, gpu_text, load_torch
from stack.measure.gpu_program import GpuProgram
from stack.measure.gpu_systems import (
    GpuSystem,
    SystemEntry,
    error_of,
    exact_results,
    leaves,
    retained,
    source_error,
    ways,
)
from stack.measure.gpu_timing import Clock, interleave, set_count
from stack.measure.runners import silence_stdout
from stack.measure.systems import first_line
from stack.rewrite.check import TOLERANCE
from stack.run.specs import parse_backends

Tell = Callable[[dict[str, Any]], None]
_SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}


class Fault(Exception):
    """Raised if the GPU can no longer be used from this process, as after an illegal access."""


def program_of(spec: str, options: dict[str, Any]) -> GpuProgram:
    """Calls the factory `pkg.mod:name` of a case."""
    module, _, name = spec.partition(":")
    made = getattr(importlib.import_module(module), name)(**options)
    assert isinstance(made, GpuProgram)
    return made


class CaseRun:
    """Runs one case: builds every system, checks its results, and times all of them together."""

    def __init__(
        self, request: dict[str, Any], tell: Tell, device: str, torch: Any, program: GpuProgram
    ) -> None:
        self.request = request
        self.tell = tell
        self.device = device
        self.torch = torch
        self.program = program
        self.is_cuda = device.startswith("cuda")
        self.exact: list[Any] | None = None
        self.usual: float | None = None  # error of the source in eager torch
        self.entries: list[dict[str, Any]] = []
        self.is_spoiled = False  # torch is unusable in this process

    def run(self, rounds: int) -> list[dict[str, Any]]:
        """Returns the result entries of all systems that were tried on the case."""
        skip: Sequence[str] = self.request.get("skip", ())
        is_cold = bool(self.request.get("cold"))
        found = ways(self.program, self.request["peers"], self.request["own"], self.device)
        if is_cold:
            self._settle()
        else:
            self._reference()
        systems: list[tuple[GpuSystem, dict[str, Any]]] = []
        for way in found:
            if way.name not in skip:
                made = self._make(way)
                if made is not None:
                    systems.append(made)
        if is_cold:
            return self.entries
        self._judge([entry for _, entry in systems])
        kept = [(s, e) for s, e in systems if not e["problem"]]
        self._time(kept, rounds)
        return self.entries

    def _reference(self) -> None:
        self.tell({"at": "the reference in double precision"})
        try:
            self.exact = exact_results(self.program)
            self.usual = source_error(self.program, self.exact)
        except Exception as error:
            self._check_device(error)
            self.tell({"note": f"no error: the reference failed: {first_line(error)}"})
        self._tidy()

    def _settle(self) -> None:
        """Initializes the framework before a cold measurement, since every compiler needs that.

        This includes library handles, torch's own tracing, and for XLA the import of JAX and its
        client.
        """
        importlib.import_module("functorch.compile")
        square = self.torch.ones(16, 16, device=self.device)
        float((square @ square).sum())
        if any(peer.backend == "xla" for peer in parse_backends(self.request["peers"])):
            jax = importlib.import_module("jax")
            jax.block_until_ready(jax.device_put(np.zeros(1)))

    def _tidy(self) -> None:
        if self.is_cuda:
            self.torch.cuda.empty_cache()

    def _check_device(self, error: BaseException) -> None:
        """Raises Fault if an error means that the device is lost."""
        if self.is_cuda and is_device_lost(error):
            raise Fault(first_line(error)) from error

    def _make(self, way: SystemEntry) -> tuple[GpuSystem, dict[str, Any]] | None:
        """Builds a system, runs it once, checks its results, and adds its entry to `entries`.

        Returns None if the system raises an error, which is then the problem of the entry.
        """
        self.tell({"at": way.name, "kind": way.kind, "is_ours": way.is_ours})
        entry: dict[str, Any] = {
            "system": way.name, "kind": way.kind, "is_ours": way.is_ours, "problem": "",
            "note": "", "error": None, "compile_s": None, "ms": None, "spread": None,
            "rounds_ms": None, "peak_bytes": None,
        }  # fmt: skip
        self.entries.append(entry)
        before = self._allocated()
        start = time.perf_counter()
        try:
            system = way.make()
            args = self._args_for(system)
            found = system.call(system.prepare(args))
            self._wait(system)
            entry["compile_s"] = time.perf_counter() - start
            self._check_values(entry, system, found)
            del found
            kept = max(0, self._allocated() - before)  # an arena, a mask: kept between calls
            peak = self._peak(system)
            entry["peak_bytes"] = None if peak is None else kept + peak
        except Exception as error:
            self._check_device(error)
            entry["problem"] = first_line(error)
            self._tidy()
            return None
        entry["kind"], entry["note"] = system.kind, system.note
        self._tidy()
        return system, entry

    def _copies(self, args: Sequence[Any]) -> tuple[Any, ...]:
        is_tensor = self.torch.is_tensor
        return tuple(a.detach().clone() if is_tensor(a) else a for a in args)

    def _args_for(self, system: GpuSystem) -> tuple[Any, ...]:
        args = self.program.args
        return self._copies(args) if system.spoils else args

    def _wait(self, system: GpuSystem) -> None:
        if system.wait is not None:
            system.wait()
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def _check_values(self, entry: dict[str, Any], system: GpuSystem, found: Any) -> None:
        results = system.results(found)
        entry["dtypes"] = [str(r.dtype).removeprefix("torch.") for r in results]
        if self.exact is not None:
            entry["error"] = error_of(self.exact, results)

    def _judge(self, entries: Sequence[dict[str, Any]]) -> None:
        """Marks a system as wrong if its error exceeds a tolerance and four times that of eager.

        The tolerance is that of the element types of the results.
        """
        names: set[str] = {n for e in entries for n in e.pop("dtypes", ())}
        known = [TOLERANCE.get(_SHORT.get(n, n), 0.0) for n in names]
        usual = self.usual if self.usual is not None and self.usual < 1 else 0.0
        allowed: float = max([0.0, *known, 4 * usual])
        for entry in entries:
            if entry["error"] is not None and not entry["error"] <= allowed:
                entry["problem"] = f"disagrees: off by {entry['error']:.2g}, allowed {allowed:.2g}"

    def _allocated(self) -> int:
        return int(self.torch.cuda.memory_allocated()) if self.is_cuda else 0

    def _peak(self, system: GpuSystem) -> int | None:
        """Returns the peak GPU bytes that one call of a system allocates, beyond those before it.

        Returns None on a CPU, and for a system that runs on streams of its own.
        """
        if not self.is_cuda or system.wait is not None:
            return None
        cuda = self.torch.cuda
        prepared = system.prepare(self._args_for(system))
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        system.call(prepared)
        cuda.synchronize()
        return int(cuda.max_memory_allocated() - before)

    def _time(self, systems: Sequence[tuple[GpuSystem, dict[str, Any]]], rounds: int) -> None:
        self.exact = None
        self._tidy()
        size = sum(x.nbytes for x in leaves(self.program.args))
        count = set_count(size)
        sets = [self.program.args, *(self._copies(self.program.args) for _ in range(count - 1))]
        clocks: list[Clock] = []
        timed: list[dict[str, Any]] = []
        for system, entry in systems:
            try:
                own = [self._copies(args) for args in sets] if system.spoils else sets
                prepared = [system.prepare(args) for args in own]
            except Exception as error:
                self._check_device(error)
                entry["problem"] = first_line(error)
                continue
            clocks.append(Clock(self.torch, system.call, prepared, system.wait, self.is_cuda))
            timed.append(entry)
        self.tell({"at": "timing of " + ", ".join(e["system"] for e in timed)})
        for clock, entry, timing in zip(clocks, timed, interleave(clocks, rounds), strict=True):
            if isinstance(timing, Exception):
                self._check_device(timing)
                entry["problem"] = first_line(timing)
                continue
            entry.update(ms=timing.median * 1e3, spread=timing.spread * 1e3)
            entry["rounds_ms"] = [1e3 * s for s in timing.rounds]
            entry["note"] = "; ".join(filter(None, (entry["note"], clock.note)))
            self.is_spoiled |= clock.is_spoiled


def run_case(
    request: dict[str, Any], tell: Tell, rounds: int, device: str = "cuda"
) -> dict[str, Any]:
    """Returns the reply for one request.

    Its keys: `spec`, `options`, `peers`, `own` (see `ways`), `skip` (names of systems that crashed
    the device), `cold` (compile times only).
    """
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    tell({"at": "the inputs"})
    with retained(), own_stream(torch, device):
        program = program_of(request["spec"], request["options"])
        run = CaseRun(request, tell, device, torch, program)
        entries = run.run(rounds)
    return {
        "entries": entries,
        "spoiled": run.is_spoiled,
        "flops": program.flops,
        "bytes": program.bytes,
        "exps": program.exps,
    }


def own_stream(torch: Any, device: str) -> AbstractContextManager[Any]:
    """Returns a context with a stream on which CUDA graphs can be captured.

    Forward passes need it too: a backward pass runs on the stream of its forward pass, and the
    default stream cannot be captured.
    """
    return torch.cuda.stream(torch.cuda.Stream()) if device.startswith("cuda") else nullcontext()


def _forget(torch: Any) -> None:
    """Frees the memory of the last case, and the code that was compiled for it."""
    import gc

    torch.compiler.reset()
    importlib.import_module("stack.frontends.torch").clear_runs()
    gc.collect()
    torch.cuda.empty_cache()


def serve() -> int:
    """Answers the requests on stdin, one JSON line each, until it ends."""
    out = silence_stdout()

    def tell(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    torch = load_torch()
    importlib.import_module("stack.frameworks.torch_private").allow_recompiles(1 << 12)
    tell({"device": gpu_text(torch)})
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if request.get("ceilings"):
            found = gpu_ceilings(torch)
            rates = {"flops": found.flops["bf16"], "bytes": found.bytes, "how": found.how}
            tell({"done": rates})
            continue
        try:
            reply = {"done": run_case(request, tell, int(request["rounds"]))}
            torch.cuda.synchronize()
        except Exception as error:
            lost = isinstance(error, Fault) or is_device_lost(error)
            reply = {"failed": first_line(error), "lost": lost}
        tell(reply)
        if reply.get("lost"):
            return POISONED
        _forget(torch)
    return 0


if __name__ == "__main__":
    sys.exit(serve())
