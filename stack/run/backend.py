"""What a backend gives: one manifest for our own code generators and for compiler peers alike."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getdoc
from typing import Any

import numpy as np

from stack.ir.node import Func
from stack.target import Target


@dataclass(frozen=True, repr=False)
class Kernel:
    """One thing that runs: a kernel, generated or by hand, a library call, or the framework.

    `flops` and `bytes` are counted from the axis rules. `ops` are op names of the fusion body;
    `source` are lines such as "block.py:42"; `stage_node` is the name of its node in the last
    stage. `resources` is what it takes of a GPU: registers, spilled and shared bytes, threads;
    `warning` is what its assembler says makes it slow.
    `run(times) -> seconds for each` measures it alone where the backend can.
    """

    name: str
    kind: str  # "generated", "hand", "library" or "fallback"
    text: str = ""
    extension: str = "txt"
    stage_node: str = ""
    source: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    flops: float = 0
    bytes: float = 0
    resources: dict[str, int] = field(default_factory=dict)
    warning: str = ""

    def __repr__(self) -> str:
        lines = ", ".join(self.source) or "no source line"
        return f"<Kernel {self.name}: {self.kind}, {self.flops:.3g} flops, {lines}>"

    def _repr_html_(self) -> str:
        head, text = html.escape(repr(self)), html.escape(self.text or "no code of ours")
        return f"<details open><summary>{head}</summary><pre>{text}</pre></details>"


def source_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """`block.py:42 Attn.wq` to `block.py:42`, each once, those of a file by number."""
    found = dict.fromkeys(line.split(" ")[0] for line in lines)
    files = list(dict.fromkeys(place.rpartition(":")[0] for place in found))

    def order(place: str) -> tuple[int, int]:
        file, _, number = place.rpartition(":")
        return files.index(file), int(number) if number.isdigit() else 0

    return tuple(sorted(found, key=order))


# a call with a framework's arrays; None, and nothing has run, for arrays of another kind
Direct = Callable[[Sequence[Any]], list[Any] | None]


@dataclass(frozen=True)
class Crossing:
    """How a framework's arrays come to a program, and results go back.

    Attributes:
        count: how many arrays a call is given.
        is_alike: whether they are such that the program may have their addresses; takes them one
            by one.
        address: where the first element of an array is.
        make: what gives memory for a result, of its layout.
        layouts: arguments of that, for each result of the call.
        places: for each parameter of the program which array of the call it is.
        numbers: for each result of the program which one of the call's it is.
    """

    count: int
    is_alike: Callable[..., bool]
    address: Callable[[Any], int]
    make: Callable[..., Any]
    layouts: Sequence[tuple[Any, ...]]
    places: Sequence[int]
    numbers: Sequence[int]


@dataclass(frozen=True)
class ByAddress:
    """A program on memory of the caller's, where no step of it needs an array.

    Attributes:
        call: takes addresses of dense storage: of the parameters, then of results to fill in.
        shapes: those of the results.
        frees: whether a call on arrays would let go of large ones before it ends.
        entered: makes one native function of all that a call does, which gives None, too, where
            memory is short; None where no machine code can be such a function.
    """

    call: Callable[[Sequence[int]], None]
    shapes: Sequence[tuple[int, ...]]
    frees: bool
    entered: Callable[[Crossing], Direct | None] = lambda _: None


@dataclass(frozen=True)
class Frozen:
    """What a program makes of its weights alone, and need not make again while these stay.

    Attributes:
        weights: numbers of the parameters that it is made of.
        prepare: storage arrays, one for each parameter, to what is kept.
        call: what is kept, and storage arrays for all parameters, to results as of `run`.
        by_address: the same, of addresses of what is kept, of all parameters, and of results to
            fill in; None where it cannot be called so.
        bytes: of what is kept.
    """

    weights: tuple[int, ...]
    prepare: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
    call: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], list[np.ndarray]]
    by_address: ByAddress | None
    bytes: int


@dataclass
class Executable:
    """A compiled program.

    Attributes:
        run: storage arrays (C order, bf16 as uint16), one for each parameter, to result arrays
            of the same kind that the caller owns.
        kernels: what runs, in order; equal kernels are listed once for each call.
        artifacts: later stages as text: "mlir", "llvm", "asm", "hlo", "inductor", "tir". A value
            may be a function that makes the text when asked.
        counts_what: what the length of `kernels` counts, in words.
        prepare: numpy storage arrays to the backend's own arrays (default: the same).
        call: runs on prepared arrays, for timing without conversions (default: `run`).
        finish: results of `call` to numpy storage arrays.
        device: where `call` works: "cpu", "cuda" or "cuda:1".
        accept: arrays of a framework that are on `device` already to what `call` takes, without a
            copy (DLPack; torch tensors as they are); results of `call` then go back to the
            framework as they are. None where only storage arrays are taken.
        wait: returns when all calls are done, where `call` does not wait for the device.
        arrays: the frontend whose arrays `call` works on. Memory of other frameworks is only lent:
            who passes it waits for the call before giving it back.
        by_address: the same on addresses, where it can be called so.
        peak_bytes: most memory held for intermediates and results, or None where unknown.
        note: how it was tuned, what is missing.
        drain: as `run`, of an iterator of arrays: each is let go of after its last reader. None
            where all of them are held.
        stepwise: why calls launch their steps one by one; empty where they replay a graph of the
            device, and where there is no such thing.
        frozen: how to keep what depends on weights alone; None where it is made in each call.
    """

    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
    kernels: list[Kernel] = field(default_factory=list)
    artifacts: dict[str, str | Callable[[], str]] = field(default_factory=dict)
    counts_what: str = "kernels"
    prepare: Callable[[Sequence[np.ndarray]], Any] | None = None
    call: Callable[[Any], Any] | None = None
    finish: Callable[[Any], list[np.ndarray]] | None = None
    device: str = "cpu"
    accept: Callable[[Sequence[Any]], Any] | None = None
    wait: Callable[[], None] | None = None
    arrays: str = ""
    by_address: ByAddress | None = None
    peak_bytes: int | None = None
    note: str = ""
    profile: Callable[[Sequence[np.ndarray]], list[float]] | None = None  # seconds per kernel
    stepwise: Callable[[], str] = str
    drain: Callable[[Iterator[np.ndarray]], list[np.ndarray]] | None = None
    frozen: Frozen | None = None


# kernels, and later stages by name as text or as what makes it
Inspected = tuple[list[Kernel], dict[str, str | Callable[[], str]]]


@dataclass(frozen=True)
class Resume:
    """Going on from kernels that a person has edited.

    Attributes:
        stages: names of the artifacts whose text is taken back.
        compile: `(lowered function, text by kernel, options) -> Executable`; kernels without text
            are printed. Raises ParseError with the line and column in a text.
    """

    stages: tuple[str, ...]
    compile: Callable[[Func, Mapping[str, str], dict[str, Any]], Executable]


@dataclass(frozen=True)
class Lowering:
    """How a function comes to a backend: what passes do, as text.

    Attributes:
        level: of the functions that `compile` takes.
        stages: `(stage name, pass pipeline)` that bring a tensor-level function there.
        artifacts: names of the stages after them, which `Executable.artifacts` holds.
        retreat: passes that give groups marked `refused` another way to be computed; "" where a
            refused kernel is an error.
        proposal: passes that name several schedules for each group of a function before the last of
            `stages`, best first; "" where there is no choice to measure.
        hosts: where its programs call code by hand for hosted operators: "cpu", "cuda"; "" where
            they call none.
        resume: for kernels that a person has edited; None where their text is not taken back.
        steps: the function, as `module:name`, that takes a group of stage `scheduled` and a target
            and gives the group's plain loop nest and the kernel after each step of its schedule,
            each with what the step says and why; "" where it shows none.
        recomputes: whether a product that goes into reductions stays out of memory, so that a
            backward pass computes it again where that costs less than keeping it.
    """

    level: str = "tensor"
    stages: tuple[tuple[str, str], ...] = ()
    artifacts: tuple[str, ...] = ()
    retreat: str = ""
    proposal: str = ""
    hosts: str = ""
    resume: Resume | None = None
    steps: str = ""
    recomputes: bool = False


@dataclass(frozen=True)
class Machine:
    """What runs a backend's code.

    Attributes:
        warm: starts what takes a while to start, and returns at once: called with a user's options
            where it can run, as a program begins to be captured.
        identify: the device that options name and the versions that a measurement holds for.
        at_hand: the target that options name by their device: what is here, and where nothing
            is, the reference. None for peers, which know their machine.
        limits: what the backend does without on this machine, in one sentence; "" if nothing.
    """

    warm: Callable[[Mapping[str, Any]], None] | None = None
    identify: Callable[[dict[str, Any]], str] | None = None
    at_hand: Callable[[Mapping[str, Any]], Target] | None = None
    limits: Callable[[], str] | None = None


@dataclass(frozen=True)
class Peer:
    """Another compiler, which takes the tensor level.

    Attributes:
        native: its own path on the user's callable: `(captured, options) -> Executable` whose
            `run` takes the same storage arrays; None where it has none.
        isolate: whether it may take the process down: measured in a process of its own.
    """

    native: Callable[[Any, dict[str, Any]], Executable] | None = None
    isolate: bool = False


@dataclass(frozen=True)
class Backend:
    """A code generator or a peer. Entry point group `stack.backends`; the object is BACKEND.

    Attributes:
        compile: a lowered function to an executable. Its docstring says what it is and which
            options it takes.
        missing: None when it can run here, else what is needed (an extra, a device).
        lowering: how functions come to it.
        inspect: kernels and later stages of a lowered function for `options["target"]`, a machine
            that need not be here; None for backends that compile for this machine.
        options: names of the options that `compile` takes from a user; None lets any pass.
        machine: what runs its code.
        peer: for another compiler; None for code generators of our own.
    """

    name: str
    compile: Callable[[Func, dict[str, Any]], Executable]
    missing: Callable[[], str | None]
    lowering: Lowering = Lowering()
    inspect: Callable[[Func, dict[str, Any]], Inspected] | None = None
    options: tuple[str, ...] | None = None
    machine: Machine = Machine()
    peer: Peer | None = None

    @property
    def doc(self) -> str:
        """What it is, then its options."""
        return getdoc(self.compile) or ""
