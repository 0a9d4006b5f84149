"""Plants faults one after the other: `python tests/faults/sweep.py [PART OF A NAME] [-o FILE]`.

Each is planted in a copy of the checkout; then the tests of its folder run, and `stackc bisect`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from planted import FAULTS, Fault
from programs import JAX, TEXTS, TORCH

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60  # that the tests of a folder may take to find what is planted in it
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".gpu", "__pycache__", "runs", "*.egg-info")


@dataclass(frozen=True)
class Outcome:
    """What was found of one fault."""

    name: str
    caught: bool
    seconds: float
    named: bool
    said: str


def copy_of_checkout(folder: Path) -> Path:
    """The checkout without what git ignores; its links stay links."""
    made = folder / "checkout"
    shutil.copytree(ROOT, made, symlinks=True, ignore=LEFT_OUT)
    for info in ROOT.glob("*.egg-info"):
        shutil.copytree(info, made / info.name)
    return made


def plant(checkout: Path, fault: Fault) -> str:
    """Change the text; returns what the file was. Raises ValueError where the place is not one."""
    path = checkout / fault.file
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {text.count(fault.old)} places in {fault.file}")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return text


def target_of(fault: Fault, folder: Path) -> str:
    """A program that shows a fault, as the command line names it."""
    if fault.program in TEXTS:
        path = folder / f"{fault.program}.stack"
        path.write_text(TEXTS[fault.program], encoding="utf-8")
        return str(path)
    framework = fault.program.partition("_")[0]
    path = folder / f"{framework}_programs.py"
    path.write_text(TORCH if framework == "torch" else JAX, encoding="utf-8")
    return f"{path}:{fault.program}"


def run(checkout: Path, *command: str, seconds: float) -> tuple[int, str]:
    """Exit code and output of a command of the copy; 124 where it takes too long."""
    paths = os.pathsep.join([str(checkout), str(checkout / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, "STACK_CACHE_DIR": str(checkout / "cache")}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=checkout,
            env=env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"more than {seconds:g} s"
    return done.returncode, done.stdout + done.stderr


def try_fault(checkout: Path, fault: Fault, folder: Path) -> Outcome:
    """Plant, test, bisect, and take it out again."""
    before = plant(checkout, fault)
    try:
        start = time.perf_counter()
        tests = [f"tests/{test}" for test in fault.tests]
        options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not gpu")
        code, _ = run(checkout, "pytest", *options, *tests, seconds=SECONDS)
        seconds = time.perf_counter() - start
        said = "nothing here runs its code"
        if fault.expected:
            machine = ["--backend", fault.backend]
            machine += ["--target", "sm_90"] if fault.backend != "mlir" else []
            argv = ("stack", "bisect", target_of(fault, folder), *machine)
            said = run(checkout, *argv, seconds=3 * SECONDS)[1].strip()
    finally:
        (checkout / fault.file).write_text(before, encoding="utf-8")
    named = bool(fault.expected) and fault.expected in said and "every step is" not in said
    return Outcome(fault.name, code == 1, round(seconds, 1), named, said[:400])


def sweep(folder: Path, part: str = "") -> list[Outcome]:
    """All faults, those whose name has `part`."""
    checkout = copy_of_checkout(folder)
    found: list[Outcome] = []
    for fault in FAULTS:
        if part in fault.name:
            found.append(try_fault(checkout, fault, folder))
            print(json.dumps(asdict(found[-1])), flush=True)
    return found


def main() -> int:
    """Sweep, and say how many are caught and named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("-o", "--folder", type=Path, required=True)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found = sweep(args.folder, args.part)
    caught, named = sum(o.caught for o in found), sum(o.named for o in found)
    print(f"{len(found)} faults: {caught} caught by their folder's tests, {named} named by bisect")
    return 0


if __name__ == "__main__":
    sys.exit(main())
