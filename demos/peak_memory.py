"""Peak memory on a CPU of a forward pass and of a training step, each system in a fresh process.

    python -m stack.demos.peak_memory [--quick] [PROGRAM ...]

Runs GPT-2 small with a sequence of 512, or programs of `stackc bench models` by name. Peaks are of
the process (VmHWM) in calls after the first. They include parameters, gradients, saved values of
the forward pass, and the compiler, which is in the same process. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from stack.demos import models, suite
from stack.demos.ops_teller import forget_peak, resident
from stack.explore.table import table

SYSTEMS = ("eager", "stack", "inductor")
GPT2 = models.GPT2Config(seq=512, layers=12, vocab=50257, written_out=False)
SMALL = models.GPT2Config(64, 4, 256, seq=64, layers=2, vocab=1000, written_out=False)
CALLS = 3  # after the first, which compiles
MIB = 1 << 20


def program(name: str, train: bool) -> tuple[Any, tuple[Any, ...]]:
    """Returns a model and its inputs; with `train`, the model returns its loss."""
    if name in ("gpt2-small", "quick"):
        from stack.demos import models_torch

        return models_torch.make_gpt2(GPT2 if name == "gpt2-small" else SMALL)
    found = suite.program(name, train=train)
    return found.fn, found.args


def measure(name: str, train: bool, system: str) -> dict[str, float]:
    """Returns MiB of this process: before the first call, and the peak of later ones."""
    import torch

    torch.manual_seed(0)
    module, args = program(name, train)
    call = module
    if system != "eager":
        call = torch.compile(module, backend=system)
    step = trained(module, call, args) if train else forward(call, args)
    before = resident("VmRSS")
    step()
    forget_peak()
    for _ in range(CALLS):
        step()
    return {"before": before / MIB, "peak": resident("VmHWM") / MIB}


def forward(call: Callable[..., Any], args: Sequence[Any]) -> Callable[[], None]:
    """Returns a function that runs one forward pass and drops its result."""
    import torch

    def step() -> None:
        with torch.no_grad():
            call(*args)

    return step


def trained(module: Any, call: Callable[..., Any], args: Sequence[Any]) -> Callable[[], None]:
    """Returns a function that runs one step of gradient descent."""
    import torch

    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        call(*args).backward()
        optimizer.step()

    return step


def in_fresh_process(name: str, train: bool, system: str) -> dict[str, float]:
    """Runs `measure` in a fresh process; raises CalledProcessError if that fails."""
    command = [sys.executable, "-m", "stack.demos.peak_memory", name, "--in-process", system]
    made = subprocess.run(
        [*command, *(["--train"] if train else [])], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(made.stdout.splitlines()[-1])


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table of peaks. The exit code is 1 if ours is above eager's."""
    parser = argparse.ArgumentParser(prog="python -m stack.demos.peak_memory")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--quick", action="store_true", help="a tiny model, eager and ours")
    parser.add_argument("--in-process", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.in_process:
        print(json.dumps(measure(given.programs[0], given.train, given.in_process)))
        return 0
    names = given.programs or (["quick"] if given.quick else ["gpt2-small"])
    systems = SYSTEMS[:2] if given.quick else SYSTEMS
    rows: list[list[object]] = []
    above: list[str] = []
    for name in names:
        for train in (False, True):
            what = f"{name}, {'training step' if train else 'forward'}"
            found = {system: in_fresh_process(name, train, system) for system in systems}
            for system, made in found.items():
                share = made["peak"] / found["eager"]["peak"]
                peak = made["peak"] - made["before"]
                sizes = [f"{n:.0f}" for n in (made["before"], made["peak"], peak)]
                rows.append([what, system, *sizes, f"{share:.2f}"])
            if found["stack"]["peak"] > found["eager"]["peak"]:
                above.append(what)
    heads = ["program", "system", "before, MiB", "peak, MiB", "added, MiB", "peak over eager's"]
    print(table(heads, rows))
    print(f"above eager's: {'; '.join(above) or 'nothing'}")
    return 1 if above and not given.quick else 0


if __name__ == "__main__":
    sys.exit(main())
