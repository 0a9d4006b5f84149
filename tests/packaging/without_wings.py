"""Runs the core without wings and prints the results as JSON: `without_wings.py TREE`.

`TREE` is the folder that `stack` must be imported from. Writes into the current folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import stack
from stack.cli import main
from stack.errors import WingMissing
from stack.explore.explored_run import explored
from stack.run.compile import compile_func
from stack.run.record import Run, Stage

TEXT = """func @f(%x: f32[4, 8], %w: f32[8]) -> (f32[4, 8]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[4, 8]
  %y = mul(%x, %wide) : f32[4, 8]
  %e = exp(%y) : f32[4, 8]
  return %e
}
"""
OPERATOR = """func @g(%x: f32[4]) -> (f32[4]) at tensor {
  %y = custom(%x) {name="mine.clamp", params=[], rule="a -> a"} : f32[4] {(%p: f32[4])
    return %p
  }
  return %y
}
"""
PROGRAM = "def f(x, y):\n    return (x @ y).sum(0)\n"
NEEDS = {
    "bench cpu --quick": "bench",
    "compare f.stack --with eager": "bench",
    "dump f.stack --profile": "bench",
    "opt f.stack --against optimum": "bench",
    "run r --kernel k=hand.py:mine": "bench",
    "report f.stack -o f.html": "report",
    "check-rule canonicalize:twice": "testing",
    "new pass mine --kind fusion": "testing",
    "bisect f.stack": "faults",
    "show r fused --graph g.dot": "report",
    "dump model.onnx": "files",
    "dump g.stack": "ops",
    "dump f.stack --mesh dp=2": "mesh",
    "explain r --sharding %e": "mesh",
}
COMMANDS = (
    *("env --json", "passes", "stages", "ops", "backends", "glossary fuse", "targets sm_90"),
    *("show r fused", "explain r e", "where r e", "diff r:imported r:imported"),
    *("opt f.stack --pass-pipeline=canonicalize,fuse", "run f.stack", "dump f.stack -o r2"),
    "bench --help",
    *NEEDS,
)


# Commands for a program of torch, where torch is installed.
OF_PROGRAM = (
    *("dump net.py:f -i f32[4,8] -i f32[8,2] -o r3", "show r3 fused", "where r3 net.py:2"),
    *("run r3:fused", "dump net.py:f -i f32[4,8] -i f32[8,2] --to fused"),
    "dump net.py:f -i f32[4,8] -i f32[8,2] --backend triton",
)


def refusal(call: Any) -> str:
    """Returns the error of a call that needs a wing; "" if it does not."""
    try:
        call()
    except WingMissing as error:
        return str(error)
    return ""


def compiled() -> dict[str, Any]:
    """Compiles a function, asks about its run, and saves it."""
    Path("f.stack").write_text(TEXT)
    Path("g.stack").write_text(OPERATOR)
    Path("net.py").write_text(PROGRAM)
    Path("model.onnx").write_bytes(b"\x08\x0a\x12")
    x, w = np.ones((4, 8), np.float32), np.full(8, 2, np.float32)
    func, record = stack.parse(TEXT), Run("f.stack", "ir", "mlir")
    record.records.append(Stage("imported", func=func))
    (result,) = compile_func(func, "mlir", record).run([x, w])
    np.testing.assert_allclose(result, np.exp(x * w), rtol=1e-5)
    run = explored(record)
    run.save("r")
    answers = [run.where("e"), run.explain("e"), run.diff("imported", "fused")]
    answers.append(run._repr_html_())  # pyright: ignore[reportPrivateUsage]
    refusals = {
        "report": refusal(lambda: run.report("r.html")),
        "calls": refusal(lambda: stack.compile(func, x, w)),
        "ops": refusal(lambda: stack.op),
        "faults": refusal(lambda: stack.first_nan(func)),
    }
    return {"answers": answers, "refusals": refusals}


def command(line: str) -> list[Any]:
    """The exit code, the output and the errors of a command."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), err.getvalue()]


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def traced() -> list[str]:
    """The ops of a traced torch function; none without torch."""
    if not has_torch():
        return []
    import torch

    func = stack.trace(lambda x, y: torch.relu(x + y), torch.ones(3), torch.ones(3))
    return [node.op for node in func.nodes]


def problems(found: dict[str, Any]) -> list[str]:
    """Returns the failures of a core without wings."""
    wrong = [] if all(found["answers"]) else ["a question about a run has no answer"]
    for line, (code, _, error) in found["commands"].items():
        expected = 5 if line in NEEDS else 0
        if code != expected:
            wrong.append(f"stackc {line}: exit code {code}, not {expected}: {error}")
    return wrong


if __name__ == "__main__":
    assert str(Path(stack.__file__)).startswith(sys.argv[1]), stack.__file__
    found = {**compiled(), "traced": traced()}
    lines = (*COMMANDS, *(OF_PROGRAM if has_torch() else ()))
    found["commands"] = {line: command(line) for line in lines}
    print(json.dumps(found))
    raise SystemExit("\n".join(problems(found)) or 0)
