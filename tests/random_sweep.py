"""Random programs by the thousand: `python tests/random_sweep.py KIND --minutes 60`.

A sweep runs the seeds of one kind in worker processes. It goes on after a wrong result, an
exception, a timeout or the death of a worker, prints each, and ends with a count of all verdicts.
`--log FILE` appends that count as one line of JSON. Without arguments it lists the kinds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
SHARE = 250  # seeds of one worker process, whose memory grows with what it compiles
LIMIT = 180  # seconds of one program

Check = Callable[[int], str | None]


def module(path: str) -> Any:
    """Loads a test file, as pytest does: with its folder on the path."""
    sys.path.insert(0, str((TESTS / path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, TESTS / path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def native() -> Check:
    from random_programs import random_program

    check = module("passes/test_random.py").natively
    return lambda seed: check(random_program(seed))


def stages() -> Check:
    from random_programs import random_program

    tests = module("passes/test_random.py")

    def check(seed: int) -> None:
        tests.through_every_pass(random_program(seed, small=True))
        tests.through_every_stage(random_program(seed, small=True))

    return check


def machines() -> Check:
    from random_programs import random_program

    check = module("passes/test_random.py").for_other_machines
    return lambda seed: check(random_program(seed))


def streams() -> Check:
    return module("passes/test_stream.py").run_random


def sharded() -> Check:
    check = module("passes/sharding/test_random_programs.py").check
    return lambda seed: check(seed, Counter())


def short_floats() -> Check:
    from random_programs import short_program

    from stack.run.compile import compile_func

    is_sound = module("backends/mlir/test_short_floats.py").is_sound

    def check(seed: int) -> None:
        program = short_program(seed)
        is_sound(compile_func(program.func, "mlir", options={"cache": False}), program)

    return check


def short_torch(backward: bool) -> Check:
    from random_short_floats import wrong

    def check(seed: int) -> None:
        found = wrong(seed, backward=backward)
        assert not found, found

    return check


def state(entry: str) -> Check:
    from mutated_programs import judged, random_program

    tests = module("frontends/torch/test_old_values.py")

    def check(seed: int) -> str:
        program = random_program(seed, shared=seed % 3 == 2)
        by = tests.by(entry) if seed % 8 == 0 else tests.by(entry, backend="interpreter")
        return verdict(judged(program, by), program.text)

    return check


def border(entry: str) -> Check:
    judged = module("frontends/torch/test_border.py").judged
    return lambda seed: verdict(judged(seed, entry))


def verdict(found: Any, text: str = "") -> str:
    """Returns the kind of a verdict; a wrong result is an error."""
    assert found.kind != "wrong", f"{found.why}\n{text}"
    return str(found.kind)


def jax_programs(with_gradients: bool) -> Check:
    import jax

    run = module("frontends/jax/test_random.py").run

    def check(seed: int) -> None:
        if seed % 50 == 0:
            jax.clear_caches()
        run(seed, with_gradients)

    return check


def lists(path: str) -> Check:
    run = module(path).run
    if path.endswith("test_block.py"):
        return lambda seed: run(range(seed, seed + 1)) and None
    return lambda seed: run(range(seed, seed + 1), range(seed // 20, seed // 20 + 1)) and None


KINDS: dict[str, tuple[Callable[[], Check], str]] = {
    "native": (native, "IR programs, compiled for the CPU"),
    "stages": (stages, "IR programs through each pass alone, and after each stage"),
    "machines": (machines, "IR programs, lowered for five kinds of CPU and a GPU, interpreted"),
    "streams": (streams, "IR programs with reductions that depend on each other"),
    "sharded": (sharded, "IR programs on a mesh: the parts of all ranks and the whole"),
    "short": (short_floats, "IR programs of 16-bit floats at odd sizes"),
    "short-torch": (partial(short_torch, False), "torch programs of 16-bit floats"),
    "short-gradients": (partial(short_torch, True), "their gradients"),
    "state-torch": (
        partial(state, "torch.compile"),
        "training that writes to state",
    ),
    "state-stack": (partial(state, "stack.compile"), "the same by stack.compile"),
    "border-torch": (partial(border, "torch"), "views, aliases, writes"),
    "border-stack": (partial(border, "stack"), "the same by stack.compile"),
    "jax": (partial(jax_programs, False), "JAX programs"),
    "jax-gradients": (partial(jax_programs, True), "their gradients"),
    "lists": (partial(lists, "passes/steps/test_random_lists.py"), "lists of steps"),
    "lists-streams": (partial(lists, "passes/steps/test_block.py"), "lists of steps over streams"),
    "lists-native": (
        partial(lists, "backends/mlir/test_random_lists.py"),
        "lists of steps, compiled",
    ),
}


def worker(kind: str, first: int, last: int, deadline: float, mark: Path) -> None:
    """Checks seeds and prints one JSON line for each; `mark` names the seed that it is at."""
    import faulthandler
    import signal

    sys.path.insert(0, str(TESTS))
    warnings.simplefilter("ignore")
    faulthandler.enable()

    def late(*_: object) -> None:
        raise TimeoutError(f"{LIMIT} s")

    signal.signal(signal.SIGALRM, late)
    check = KINDS[kind][0]()
    for seed in range(first, last):
        if time.time() > deadline:
            break
        mark.write_text(str(seed), encoding="utf-8")
        signal.alarm(LIMIT)
        try:
            found, why = check(seed) or "right", ""
        except Exception as error:
            found = "wrong" if isinstance(error, AssertionError) else type(error).__name__
            why = f"{error}\n{traceback.format_exc(limit=-3)}"[:4000]
        signal.alarm(0)
        print(json.dumps([seed, found, why]), flush=True)
    mark.write_text("", encoding="utf-8")


def sweep(kind: str, first: int, last: int, minutes: float) -> dict[str, Any]:
    """Checks the seeds in fresh processes and returns the count of each verdict."""
    counts: Counter[str] = Counter()
    failures: dict[int, str] = {}
    start, deadline, seed = time.time(), time.time() + 60 * minutes, first
    mark = Path(os.environ.get("TMPDIR", "/tmp")) / f"sweep-{kind}-{os.getpid()}"
    while seed < last and time.time() < deadline:
        end = min(last, seed + SHARE)
        command = [sys.executable, __file__, kind, "--worker", str(deadline), str(mark)]
        child = subprocess.run(
            [*command, "--seeds", f"{seed}:{end}"], stdout=subprocess.PIPE, text=True, check=False
        )
        for line in child.stdout.splitlines():
            if not line.startswith("["):
                continue  # a print of the program
            seed, found, why = json.loads(line)
            counts[found] += 1
            if why:
                failures[seed] = found
                print(f"{kind} {seed}: {found}: {why}", flush=True)
        at = mark.read_text(encoding="utf-8") if mark.exists() else ""
        if child.returncode:
            seed = int(at or seed)
            counts["dead process"] += 1
            failures[seed] = f"dead process ({child.returncode})"
            print(f"{kind} {seed}: the process died, exit code {child.returncode}", flush=True)
        seed += 1
        print(f"{kind}: seeds {first} to {seed - 1}: {dict(counts)}", file=sys.stderr, flush=True)
    mark.unlink(missing_ok=True)
    return {
        "kind": kind,
        "seeds": [first, seed - 1],
        "counts": dict(counts),
        "failures": failures,
        "minutes": round((time.time() - start) / 60, 1),
    }


def main() -> int:
    """Parses the arguments and runs one sweep; returns 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS)
    parser.add_argument("--seeds", default="0:10000", help="first and last + 1, as 0:10000")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no program after them")
    parser.add_argument("--log", type=Path, help="append the counts as a line of JSON")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind is None:
        print("\n".join(f"{kind:16} {text}" for kind, (_, text) in KINDS.items()))
        return 0
    first, last = map(int, args.seeds.split(":"))
    if args.worker:
        worker(args.kind, first, last, float(args.worker[0]), Path(args.worker[1]))
        return 0
    found = sweep(args.kind, first, last, args.minutes)
    print(json.dumps(found))
    if args.log:
        with args.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
