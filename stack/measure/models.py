"""The suite of models: unmodified programs, forward (M1) and training step (M2)."""

from __future__ import annotations

from stack.imports import import_named
from stack.measure.suite import Case

SPEC = "stack.demos.suite:program"
PEERS = {
    "cpu": "eager,inductor,xla",
    "cuda": "eager,inductor,inductor{mode=reduce-overhead},xla",
}
TUNED = {
    "cpu": "inductor{mode=max-autotune-no-cudagraphs}",
    "cuda": "inductor{mode=max-autotune}",
}
FROZEN = "inductor{freezing=true}"  # weights as constants: no gradients
COLD = ("llama", "gpt2", "resnet50", "rnn_scan")


def model_cases(device: str = "cpu", train: bool = False, quick: bool = False) -> list[Case]:
    """Returns every model on a device, in each of its element types.

    `quick` leaves out Inductor's search, the cold processes, and all but the default element type.
    """
    suite = import_named(SPEC.partition(":")[0])
    kind = device.partition(":")[0]
    peers = PEERS[kind] if quick else f"{PEERS[kind]},{TUNED[kind]}"
    if kind == "cpu" and not (quick or train):
        peers += f",{FROZEN}"
    row = "M2" if train else "M1"
    cases = [
        Case(
            row,
            {"family": family, "model": name, "dtype": dtype},
            SPEC,
            {"name": name, "device": device, "train": train, "dtype": dtype},
            frontend="jax" if family == "jax" else "torch",
            peers=peers,
            quick=dtype == suite.dtypes(family, device)[0],
        )
        for family, names in suite.FAMILIES.items()
        for name in names
        for dtype in suite.dtypes(family, device)
    ]
    return cases if train else [*cases, *_cold(device, kind)]


def _cold(device: str, kind: str) -> list[Case]:
    """Returns the cases that measure the time to a program's first result.

    Each system of such a case runs in its own process.
    """
    return [
        Case(
            "M3",
            {"model": name, "process": "cold"},
            SPEC,
            {"name": name, "device": device, "train": False},
            peers=PEERS[kind],
            kind="cold",
        )
        for name in COLD
    ]
