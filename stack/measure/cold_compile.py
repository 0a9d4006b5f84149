"""Cold compile: one system in a fresh process with empty caches."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from stack.errors import StackError
from stack.measure.caches import empty_caches
from stack.measure.runners import silence_stdout
from stack.measure.suite import Case
from stack.measure.systems import capture_program, own_system, peer_systems
from stack.run.specs import BackendSpec

LONGEST = 900  # seconds
OWN = "own"


@dataclass(frozen=True)
class ColdCompile:
    """Seconds of compiling each program of a case in a fresh process.

    There are fewer of them than programs if one failed; `problem` is its error.
    """

    seconds: list[float]
    problem: str = ""


def cold_compile(case: Case, peer: BackendSpec | None, via: str, frontend: str) -> ColdCompile:
    """Compiles a case's program in a fresh process; then `case.second`, if there is one.

    `peer` is None for our own compiler. Time is measured from the user's program (via "ir": from
    our function) to the end of the first call. Loading the compiler counts. The framework has
    traced the program once before, for every system.
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
                [sys.executable, "-m", "stack.measure.cold_compile"],
                input=json.dumps(request),
                env=environment,
                capture_output=True,
                text=True,
                timeout=LONGEST,
            )
        except subprocess.TimeoutExpired:
            return ColdCompile([], f"took more than {LONGEST} seconds")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return ColdCompile([], f"the process ended with {done.returncode}: {last[:200]}")
    reply: dict[str, Any] = json.loads(lines[-1])
    seconds = [float(s) for s in reply["seconds"]]
    return ColdCompile(seconds, str(reply["problem"]))


def _child() -> None:
    """Runs in the fresh process: reads a request, compiles, prints seconds."""
    out = silence_stdout()
    request: dict[str, Any] = json.loads(sys.stdin.read())
    seconds: list[float] = []
    problem = ""
    for options in request["programs"]:
        try:
            seconds.append(_compile(request, options))
        except StackError as error:
            problem = str(error)
            break
    reply = {"seconds": seconds, "problem": problem}
    out.write(json.dumps(reply) + "\n")
    out.flush()


def _compile(request: dict[str, Any], options: dict[str, Any]) -> float:
    """Compiles one program of a request, and returns the seconds until the end of its first call.

    Raises StackError if the compiler fails or does not take programs of the framework.
    """
    from stack.explore.target import ExampleCall, resolve
    from stack.run.trace import find_frontend

    target = resolve(request["spec"], request["frontend"], options=options)
    assert isinstance(target, ExampleCall)
    target.fn(*target.args)
    frontend = find_frontend(target.fn, target.args, target.frontend)
    program = capture_program(frontend, target.fn, target.args)
    if request["peer"] is None:
        return own_system(program, None, "default", "").compile_s or 0.0
    found = peer_systems(program, BackendSpec(*request["peer"]), (request["via"],), lambda _: None)
    if not found:
        raise StackError("has no native way for this framework")
    if found[0].problem or found[0].compile_s is None:
        raise StackError(found[0].problem)
    taken = found[0].compile_s
    if found[0].runner is not None:
        found[0].runner.close()
    return taken


if __name__ == "__main__":
    _child()
