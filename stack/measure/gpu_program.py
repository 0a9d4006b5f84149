"""What a case of the GPU bench runs: a naive program on the device, its rivals, its least work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

EXP_RATE = 3.7e12  # exponentials each second that the special function units of Hopper give
MODES = ("forward", "backward", "train")


@dataclass(frozen=True)
class Rival:
    """Another way to the same results.

    Attributes:
        kind: "hand" (ours), "library" or "peer".
        make: gives what takes the program's arguments and returns its results. Raises where it
            cannot run here: that is a row with an error.
        spoils: whether it writes to its arguments: it is checked on copies.
        wait: returns when its work is done, where that runs on streams of its own.
    """

    kind: str
    make: Callable[[], Callable[..., Any]]
    spoils: bool = False
    wait: Callable[[], None] | None = None


@dataclass(frozen=True)
class GpuProgram:
    """A torch function or module with arguments on the device.

    Attributes:
        fn: the naive source that all compilers get.
        args: tensors (and plain values).
        mode: "forward" times `fn(*args)` without autograd; "backward" the gradients of a forward
            that ran before; "train" both.
        wanted: numbers of the arguments whose gradients are asked for; a module's parameters too.
        flops, bytes, exps: least work of what is timed.
        split: for each argument the axis along which the reference may be cut, None for those that
            go into every part; the results are cut along `join`. () does not cut.
        parts: how many.
        rivals: by name.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    flops: float = 0.0
    bytes: float = 0.0
    exps: float = 0.0
    mode: str = "forward"
    wanted: tuple[int, ...] = ()
    split: tuple[int | None, ...] = ()
    join: int = 0
    parts: int = 1
    rivals: dict[str, Rival] = field(default_factory=dict[str, Rival])
