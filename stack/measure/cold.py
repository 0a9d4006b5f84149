"""Cold compile: one system in a fresh process with empty caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import StackError
from stack.measure.runners import silence_stdout
from stack.measure.suite import Case
from stack.measure.systems import Peer, capture_program, own_system, peer_systems

# every place where one of the systems keeps what it compiled
CACHES = (
    *("STACK_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"),
    *("JAX_COMPILATION_CACHE_DIR", "TVM_CACHE_DIR"),
)
LONGEST = 900  # seconds
OWN = "own"


@dataclass(frozen=True)
class Cold:
    """Seconds of the first graph of a process, and of a second one.

    `captured` is the part of each that our own capture in the framework took (ours only).
    """

    seconds: list[float]
    problem: str = ""
    captured: tuple[float, ...] = ()


def empty_caches(folder: str) -> dict[str, str]:
    """An environment in which every compiler keeps what it makes in an empty folder.

    Python's bytecode is no cache of a compiler: it is used and kept, as after an installation.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return environment | {name: str(Path(folder, name.lower())) for name in CACHES}


def cold_compile(case: Case, peer: Peer | None, via: str, frontend: str) -> Cold:
    """Compile a case's program in a fresh process; then `case.second`, if there is one.

    `peer` is None for our own compiler. The clock runs from the imported framework and the built
    model to the end of the first call; what a compiler loads of itself counts.
    """
    request = {
        "spec": case.spec,
        "programs": [case.options, *([case.second] if case.second else [])],
        "frontend": frontend,
        "peer": [peer.label, peer.backend, peer.options] if peer else None,
        "via": via,
    }
    with tempfile.TemporaryDirectory(prefix="stack-cold-") as folder:
        environment = empty_caches(folder)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "stack.measure.cold"],
                input=json.dumps(request),
                env=environment,
                capture_output=True,
                text=True,
                timeout=LONGEST,
            )
        except subprocess.TimeoutExpired:
            return Cold([], f"took more than {LONGEST} seconds")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Cold([], f"the process ended with {done.returncode}: {last[:200]}")
    reply: dict[str, Any] = json.loads(lines[-1])
    seconds = [float(s) for s in reply["seconds"]]
    captured = tuple(float(s) for s in reply["captured"])
    return Cold(seconds, str(reply["problem"]), captured)


def _child() -> None:
    """The fresh process: reads a request, compiles, prints seconds."""
    out = silence_stdout()
    request: dict[str, Any] = json.loads(sys.stdin.read())
    seconds: list[float] = []
    captured: list[float] = []
    problem = ""
    for options in request["programs"]:
        try:
            taken, part = _compile(request, options)
        except StackError as error:
            problem = str(error)
            break
        seconds.append(taken)
        captured.append(part)
    reply = {"seconds": seconds, "captured": captured, "problem": problem}
    out.write(json.dumps(reply) + "\n")
    out.flush()


def _compile(request: dict[str, Any], options: dict[str, Any]) -> tuple[float, float]:
    """Seconds in all, and those of our capture."""
    from stack.explore.target import Program, resolve
    from stack.run.compile import find_frontend

    target = resolve(request["spec"], request["frontend"], options=options)
    assert isinstance(target, Program)
    target.fn(*target.args)
    frontend = find_frontend(target.fn, target.args, target.frontend)
    start = time.perf_counter()
    program = capture_program(frontend, target.fn, target.args)
    captured = time.perf_counter() - start
    if request["peer"] is None:
        compiled = own_system(program, None, "default", "").compile_s or 0.0
        return captured + compiled, captured
    found = peer_systems(program, Peer(*request["peer"]), (request["via"],), lambda _: None)
    if not found:
        raise StackError("has no way of its own for this framework")
    if found[0].problem or found[0].compile_s is None:
        raise StackError(found[0].problem)
    taken = found[0].compile_s
    if found[0].runner is not None:
        found[0].runner.close()
    return taken, 0.0


if __name__ == "__main__":
    _child()
