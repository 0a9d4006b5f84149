"""The process that times programs: reads a request, prints a line of JSON for each program."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import numpy as np

from stack.errors import POISONED, StackError, is_device_lost
from stack.ir.data import encode
from stack.ir.func import Func
from stack.ir.parser import parse
from stack.ir.types import TensorType
from stack.rewrite.inputs import random_array
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Backend, Executable
from stack.run.compile import find_backend
from stack.run.options import target_of

DRAWN = 1 << 20  # random numbers that are repeated to fill an array
CACHE_BYTES = 100 << 20  # minimum input size of a round, so that inputs are not in a cache
MOST_SETS = 8
ROUNDS = 7
ROUND_SECONDS = 4e-3


def fill(type_: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Returns a random array of a type in storage form: normal floats, but zeros for integers,
    which may be indices.
    """
    shape = tuple(int(d) for d in type_.shape if isinstance(d, int))
    if type_.dtype.kind not in "fc":
        return np.zeros(shape, type_.dtype.numpy)
    drawn = random_array(TensorType(type_.dtype, (min(DRAWN, max(1, math.prod(shape))),)), rng)
    return np.resize(encode(drawn, type_.dtype), shape)


def seconds(executable: Executable, func: Func) -> float:
    """Returns the median time of a call with inputs outside the device's cache."""
    prepare, call, wait = executable.prepare, executable.call, executable.wait
    if prepare is None or call is None or wait is None:
        raise StackError("it cannot be timed without the copies of its arguments")
    rng = np.random.default_rng(0)
    arrays = [fill(p.tensor, rng) for p in func.params]
    size = sum(a.nbytes for a in arrays)
    count = min(MOST_SETS, 1 + CACHE_BYTES // max(size, 1))
    sets = [prepare(arrays) for _ in range(count)]

    def turn(times: int) -> float:
        begin = time.perf_counter()
        for i in range(times):
            call(sets[i % count])
        wait()
        return (time.perf_counter() - begin) / times

    for _ in range(3):
        turn(count)  # compiles, and records a graph if the backend replays one
    times = max(count, math.ceil(ROUND_SECONDS / max(turn(count), 1e-7)))
    return statistics.median(turn(times) for _ in range(ROUNDS))


def compiled(func: Func, backend: Backend, options: dict[str, Any]) -> Executable | str:
    """Compiles a program; returns the error text if that fails."""
    try:
        last = backend.lowering.stages[-1][1]
        lowered = Pipeline(last).run(func, target=target_of(backend, options)).func
        made = backend.compile(lowered, {**options, "assembled": True})
        return next((k.warning for k in made.kernels if k.warning), made)
    except Exception as error:
        return _line(error)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0][:200]}"


def work(request: dict[str, Any]) -> None:
    """Compiles all programs of a request in parallel, then times them one by one and sends a reply
    for each.
    """
    backend = find_backend(request["backend"])
    options: dict[str, Any] = request["options"]
    funcs = [parse(text) for text in request["programs"]]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        # compile everything before timing: compiling threads would slow down the caller
        made = list(pool.map(compiled, funcs, repeat(backend), repeat(options)))
    for func, result in zip(funcs, made, strict=True):
        reply: dict[str, Any] = {"seconds": None, "problem": ""}
        if isinstance(result, str):
            reply["problem"] = result
        else:
            try:
                reply["seconds"] = seconds(result, func)
            except (StackError, RuntimeError) as error:
                reply["problem"] = _line(error)
                _end_if_lost(error)
        print(json.dumps(reply), flush=True)


def _end_if_lost(error: Exception) -> None:
    """Ends this process, with exit code `POISONED`, if the error reports a fault that destroyed the
    device's context. Otherwise returns.
    """
    if is_device_lost(error):
        print(_line(error), file=sys.stderr, flush=True)
        os._exit(POISONED)


if __name__ == "__main__":
    work(json.load(sys.stdin))
