"""Program of a GPU bench case: a naive function on the device, its rivals, its minimal work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

EXP_RATE = 3.7e12  # exponentials per second of the special function units of Hopper
MODES = ("forward", "backward", "train")


@dataclass(frozen=True)
class Rival:
    """Another implementation with the same results.

    Attributes:
        kind: "hand" (ours), "library" or "peer".
        make: returns a function from the program's arguments to its results. If it raises because
            the rival cannot run here, the row shows the error.
        spoils: True if it writes to its arguments; it is then checked on copies.
        wait: returns when its work is done, for work on streams of its own.
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
        mode: "forward" times `fn(*args)` without autograd. "backward" times the gradients of an
            earlier forward pass; "train" times both.
        wanted: indices of arguments that need gradients; a module's parameters always do.
        flops, bytes, exps: minimal work of the timed part.
        split: for each argument the axis along which the reference may be split, None for those
            that every part uses; the results are concatenated along `join`. () does not split.
        parts: the number of parts.
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
