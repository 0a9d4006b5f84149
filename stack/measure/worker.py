"""The server side of `WorkerRunner`: compiles one function with one backend, runs it on request."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import stack.plugins as plugins
from stack.ir import files
from stack.measure.runners import LocalRunner, load_arrays, save_arrays, silence_stdout
from stack.run.backend import Backend
from stack.run.compile import lower
from stack.run.options import target_of
from stack.run.record import Run


def serve(folder: Path) -> None:
    """Compiles and runs a program as requests on stdin say, one JSON line each, until it ends."""
    out = silence_stdout()
    runner: LocalRunner | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            if "compile" in request:
                runner, reply = _compile(folder, request)
            elif runner is None:
                raise ValueError("nothing is compiled yet")
            else:
                reply = _answer(folder, runner, request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()


def _compile(folder: Path, request: dict[str, Any]) -> tuple[LocalRunner, dict[str, Any]]:
    backend: Backend = plugins.load("stack.backends", request["compile"])
    func = files.load(folder / "func.stack")
    storage = load_arrays(folder / "inputs.npz", len(func.params))
    start = time.perf_counter()
    options = request["options"]
    lowered = lower(func, backend, Run(), target=target_of(backend, options))
    executable = backend.compile(lowered, options)
    runner = LocalRunner(executable, storage)
    runner.run(1)
    return runner, {"compile_s": time.perf_counter() - start}


def _answer(folder: Path, runner: LocalRunner, request: dict[str, Any]) -> dict[str, Any]:
    if "run" in request:
        return {"seconds": runner.run(int(request["run"]))}
    if "results" in request:
        results = runner.results()
        save_arrays(folder / "results.npz", results)
        return {"count": len(results)}
    kernels = [dataclasses.asdict(k) for k in runner.kernels]
    return {
        "kernels": kernels,
        "counts_what": runner.counts_what,
        "peak_bytes": runner.peak_bytes,
        "note": runner.note,
    }


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
