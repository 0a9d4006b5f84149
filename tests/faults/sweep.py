"""Plants faults one after the other: `python tests/faults/sweep.py [PART OF A NAME] -o FOLDER`.

Each is planted in a copy of the checkout; then the tests of its folder run, and `stackc bisect`.
In the end both run on the checkout as it is, where they must find nothing.
Seconds are those of processors, so that they hold on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from planted import FAULTS, Fault
from programs import JAX, TEXTS, TORCH

from stack.explore.table import table

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60  # of processors, that tests of a folder may take to find what is planted in it
PATIENCE = 20 * SECONDS  # by the clock, after which a command hangs
NAMED = {True: "yes", False: "no", None: "-"}
HEADS = ("fault", "test that fails", "CPU s", "named", "bisect says")
RIGHT = "every step computes the same as the program"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".gpu", "__pycache__", "runs", "*.egg-info")


@dataclass(frozen=True)
class Outcome:
    """The findings about one fault.

    Attributes:
        test: the function that failed first; empty where all of them passed.
        seconds: of processors, that the tests took.
        named: whether bisect named it; None if it is not asked, see `Fault.expected`.
        said: what bisect printed.
    """

    name: str
    test: str
    seconds: float
    named: bool | None
    said: str

    @property
    def caught(self) -> bool:
        return bool(self.test) and self.seconds < SECONDS


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


def run(checkout: Path, *command: str) -> tuple[int, str, float]:
    """Exit code, output and seconds of processors of a command of the copy; 124 where it hangs."""
    paths = os.pathsep.join([str(checkout), str(checkout / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, "STACK_CACHE_DIR": str(checkout / "cache")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=checkout,
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = 124, f"more than {PATIENCE} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return code, said, round(spent, 1)


def run_tests(checkout: Path, tests: Iterable[str]) -> tuple[str, float]:
    """The first test function that fails, and the seconds that this took."""
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not gpu")
    code, said, seconds = run(checkout, "pytest", *options, *tests)
    failed = re.search(r"^FAILED ([^\s\[]+)", said, re.MULTILINE)
    if code not in (0, 1) or (code == 1) != (failed is not None):
        raise RuntimeError(f"pytest ended with {code}: {said[-2000:]}")
    return failed.group(1) if failed else "", seconds


def run_bisect(checkout: Path, fault: Fault, folder: Path) -> str:
    """The answer of bisect for a fault's program."""
    machine = ["--backend", fault.backend]
    machine += ["--target", "sm_90"] if fault.backend != "mlir" else []
    return run(checkout, "stack", "bisect", target_of(fault, folder), *machine)[1].strip()


def try_fault(checkout: Path, fault: Fault, folder: Path) -> Outcome:
    """Plant, test, bisect, and take it out again."""
    before = plant(checkout, fault)
    try:
        test, seconds = run_tests(checkout, [f"tests/{test}" for test in fault.tests])
        said = run_bisect(checkout, fault, folder) if fault.expected else "not asked"
    finally:
        (checkout / fault.file).write_text(before, encoding="utf-8")
    named = fault.expected in said and RIGHT not in said if fault.expected else None
    return Outcome(fault.name, test, seconds, named, said)


def control(checkout: Path, folder: Path, faults: Sequence[Fault], found: list[Outcome]) -> None:
    """Without a fault these tests pass and bisect finds nothing. Raises AssertionError."""
    tests = dict.fromkeys(_shown(f, o) for f, o in zip(faults, found, strict=True) if o.test)
    failed, _ = run_tests(checkout, tests) if tests else ("", 0.0)
    assert not failed, f"without a fault {failed} fails"
    shown = {(f.program, f.backend): f for f in faults if f.expected}
    for fault in shown.values():
        said = run_bisect(checkout, fault, folder)
        assert said.endswith(RIGHT), f"without a fault, of {fault.program}: {said}"


def _shown(fault: Fault, found: Outcome) -> str:
    """The failure: the one test that the fault names, else the function."""
    return next((f"tests/{test}" for test in fault.tests if "::" in test), found.test)


def sweep(folder: Path, part: str = "") -> list[Outcome]:
    """All faults, those whose name has `part`."""
    checkout = copy_of_checkout(folder)
    faults = [fault for fault in FAULTS if part in fault.name]
    found: list[Outcome] = []
    for fault in faults:
        found.append(try_fault(checkout, fault, folder))
        print(json.dumps(asdict(found[-1])), flush=True)
    control(checkout, folder, faults, found)
    return found


def report(found: Sequence[Outcome]) -> str:
    """A line for each fault: the test that fails, its seconds, what bisect says; then the sums."""
    rows = [
        (o.name, o.test.rpartition("/")[2] or "-", str(o.seconds), NAMED[o.named],
         " ".join(o.said.split()))
        for o in found
    ]  # fmt: skip
    caught, named = sum(o.caught for o in found), sum(o.named is True for o in found)
    asked = sum(o.named is not None for o in found)
    sums = f"{len(found)} faults: {caught} caught by their folder's tests in {SECONDS} s of CPU,"
    return f"{table(HEADS, rows)}\n{sums} {named} of {asked} named by bisect"


def main() -> int:
    """Sweep, and say how many are caught and named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("-o", "--folder", type=Path, required=True)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(report(sweep(args.folder, args.part)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
