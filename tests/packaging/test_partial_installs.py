"""With frameworks missing, each command works or says in one line what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from partial_site import site_of

from stack.demos.course.catalog import LESSONS
from stack.demos.course.steps import Step

ROOT = Path(__file__).resolve().parents[2]
TEXT = """func @f(%x: f32[4, 8], %w: f32[8]) -> (f32[4, 8]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[4, 8]
  %y = mul(%x, %wide) : f32[4, 8]
  %e = exp(%y) : f32[4, 8]
  return %e
}
"""
TORCH = """
import torch

def prog():
    return torch.nn.Linear(8, 4), (torch.randn(2, 8),)
"""
JAX = """
import jax.numpy as jnp

def prog():
    return (lambda x: jnp.tanh(x) @ x.T), (jnp.ones((4, 8)),)
"""
HERE = [lesson for lesson in LESSONS if lesson.name != "15"]  # it needs a process of its own
GRADED = [lesson for lesson in HERE if not isinstance(lesson, Step)]  # these import NumPy only
COMMANDS = [
    ["env"],
    ["passes"],
    ["stages"],
    ["ops"],
    ["ops", "attention"],
    ["backends"],
    ["glossary", "fuse"],
    ["targets", "sm_90"],
    ["show", "f.stack"],
    ["opt", "f.stack", "--pass-pipeline=canonicalize,fuse"],
    ["opt", "f.stack", "--check", "--pass-pipeline=canonicalize,fuse"],
    ["run", "f.stack"],
    ["dump", "f.stack", "-o", "r0"],
    ["bisect", "f.stack"],
    ["compare", "f.stack", "--rounds", "2"],
    ["compare", "f.stack", "--with", "eager,inductor,xla,tvm", "--rounds", "2"],
    ["bench", "torch_prog.py:prog", "--with", "eager"],
    ["new", "pass", "mine", "--kind", "fusion"],
    *(
        [command, target, *more]
        for target in ("torch_prog.py:prog", "jax_prog.py:prog")
        for command, *more in (
            ["dump", "-o", "r2"],
            ["dump", "--backend", "triton", "--target", "sm_90", "-o", "r3"],
            ["dump", "--backend", "cuda", "--target", "sm_90", "-o", "r4"],
            ["dump", "--profile", "-o", "r5"],
            ["dump", "--frontend", "torch", "-o", "r6"],
            ["dump", "--frontend", "jax", "-o", "r7"],
            ["report", "-o", "report.html"],
            ["compare", "--rounds", "2"],
            ["compare", "--sharding", "--mesh", "dp=2", "--shard", "return: dp"],
            ["bisect"],
        )
    ),
]
COURSE = [
    *(["course", "run", lesson.name] for lesson in HERE),
    *(["course", "grade", lesson.name, str(lesson.solution)] for lesson in GRADED),
]
# lessons, and exercises of any lesson, that run with NumPy alone
NUMPY_LESSONS = {lesson.name for lesson in LESSONS if lesson.needs.startswith("Python and NumPy")}
NUMPY_EXERCISES = {lesson.name for lesson in LESSONS} - {"1"}
INSTALLS = {
    "numpy": (),
    "numpy, mlir": ("torch-mlir",),
    "torch": ("torch",),
    "jax": ("jax",),
    "torch, mlir": ("torch", "torch-mlir"),
    "jax, mlir": ("jax", "torch-mlir"),
    "torch, triton": ("torch", "triton"),
}
SCRIPT = """
import contextlib, io, json, sys, traceback
from stack.cli import main
from stack.demos.course.__main__ import main as course
sys.path.insert(0, ".")
for argv in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = course(argv[1:]) if argv[0] == "course" else main(argv)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = "traceback"
    found = [argv, code, out.getvalue()[-2000:], err.getvalue()[-2000:]]
    print("\\n@@" + json.dumps(found), flush=True)
"""


def run_all(install: str, folder: Path) -> Iterator[tuple[list[str], Any, str, str]]:
    names = INSTALLS[install]
    for name in ("numpy", *names):
        try:
            distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
    site = site_of(names, folder / "site")
    # no lesson needs JAX: with it alone each says what it says with NumPy alone
    commands = COMMANDS if names == ("jax",) else [*COMMANDS, *COURSE]
    work = folder / "work"
    work.mkdir()
    for name, text in (("f.stack", TEXT), ("torch_prog.py", TORCH), ("jax_prog.py", JAX)):
        (work / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT, json.dumps(commands)],
        cwd=work,
        env={
            "PYTHONPATH": f"{site}:{ROOT}",
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "STACK_CACHE_DIR": str(folder / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("@@")]
    assert len(lines) == len(commands), done.stderr[-2000:] + done.stdout[-500:]
    for line in lines:
        yield tuple(json.loads(line[2:]))


@pytest.mark.parametrize(
    "install",
    [
        pytest.param(name, marks=() if name in ("numpy", "jax") else pytest.mark.slow)
        for name in INSTALLS
    ],
)
def test_each_command_works_or_says_what_to_install(install: str, tmp_path: Path) -> None:
    wrong: list[str] = []
    for argv, code, out, err in run_all(install, tmp_path):
        told = (err + out).splitlines()
        said = [line for line in told if "error" in line or "install" in line]
        if argv[0] == "course" and code != 0:
            only_numpy = NUMPY_LESSONS if argv[1] == "run" else NUMPY_EXERCISES
            if argv[2] in only_numpy:
                wrong.append(f"{' '.join(argv)} needs NumPy alone: {err.strip()}")
        if code == "traceback" or "Traceback" in err + out:
            wrong.append(f"{' '.join(argv)}: {err.strip().splitlines()[-1]}")
        elif code not in (0, None) and not any("install" in line for line in said):
            wrong.append(f"{' '.join(argv)}: exit {code}: {err.strip()[-300:]}")
    assert not wrong, f"with {install}:\n" + "\n".join(wrong)
