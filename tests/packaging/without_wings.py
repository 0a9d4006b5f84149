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

TEXT = """func @f(%x: f32[4, 8], %w: f32[8]) -> (f32[4, 8]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[4, 8]
  %y = mul(%x, %wide) : f32[4, 8]
  %e = exp(%y) : f32[4, 8]
  return %e
}
"""
NEEDS = {
    "bench cpu --quick": "bench",
    "compare f.stack --with eager": "bench",
    "dump f.stack --profile": "bench",
    "opt f.stack --against optimum": "bench",
    "run r --kernel k=hand.py:mine": "bench",
    "report f.stack -o f.html": "report",
    "check-rule canonicalize:twice": "rules",
    "dump model.onnx": "files",
    "dump f.stack --mesh dp=2": "mesh",
    "explain r --sharding %e": "mesh",
}
COMMANDS = (
    *("env --json", "passes", "stages", "ops", "backends", "glossary fuse", "targets sm_90"),
    *("show r fused", "explain r e", "where r e", "diff r:imported r:imported"),
    *("opt f.stack --pass-pipeline=canonicalize,fuse", "run f.stack", "dump f.stack -o r2"),
    *("bisect f.stack", "new pass mine --kind fusion", "bench --help"),
    *NEEDS,
)


def compiled() -> dict[str, Any]:
    """Compiles a function, asks about its run, and saves it."""
    Path("f.stack").write_text(TEXT)
    Path("model.onnx").write_bytes(b"\x08\x0a\x12")
    x, w = np.ones((4, 8), np.float32), np.full(8, 2, np.float32)
    made = stack.compile(stack.parse(TEXT), x, w)
    np.testing.assert_allclose(made(x, w), np.exp(x * w), rtol=1e-5)
    run = made.run
    run.save("r")
    answers = [run.where("e"), run.explain("e"), run.diff("imported", "fused")]
    answers.append(run._repr_html_())  # pyright: ignore[reportPrivateUsage]
    try:
        run.report("r.html")
        report = ""
    except WingMissing as error:
        report = str(error)
    return {"answers": answers, "report": report}


def command(line: str) -> list[Any]:
    """The exit code, the output and the errors of a command."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line.split())
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), err.getvalue()]


def traced() -> list[str]:
    """The ops of a traced torch function; none without torch."""
    if importlib.util.find_spec("torch") is None:
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
    found = {**compiled(), "traced": traced(), "commands": {c: command(c) for c in COMMANDS}}
    print(json.dumps(found))
    raise SystemExit("\n".join(problems(found)) or 0)
