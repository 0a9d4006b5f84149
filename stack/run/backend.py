"""The interface of backends: one description for our own code generators and for peer compilers."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import getdoc
from typing import Any, overload

import numpy as np

from stack.ir.func import Func
from stack.ir.node import Node
from stack.run.foreign import ForeignSteps
from stack.target import Target


@dataclass(frozen=True, repr=False)
class Kernel:
    """One unit of execution: a generated or handwritten kernel, a library call, or a framework
    call.

    `flops` and `bytes` are counted from the axis rules, see `stack.run.work`. `ops` are op names of
    the fusion body; `source` are lines such as "block.py:42", `modules` paths such as
    "layers.0.attn"; `stage_node` is the name of its node in the last stage. `resources` is its use
    of GPU resources: registers, spilled and shared bytes, threads. `warning` is the assembler's
    performance warning. `computes` is the name that people know, such as "attention", see
    `stack.naming`; "" if the kernel has no step of its own. `loop_steps` is the number of
    steps that Python runs in each iteration of loops that are not compiled whole.
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
    modules: tuple[str, ...] = ()
    computes: str = ""
    loop_steps: int = 0

    def __repr__(self) -> str:
        lines = ", ".join(self.source) or "no source line"
        return f"<Kernel {self.name}: {self.kind}, {self.flops:.3g} flops, {lines}>"

    def _repr_html_(self) -> str:
        head, text = html.escape(repr(self)), html.escape(self.text or "no code of ours")
        return f"<details open><summary>{head}</summary><pre>{text}</pre></details>"


class LazyKernel(Kernel):
    """A copy of a kernel record, some of whose fields are computed on first use.

    Args:
        make: functions that compute `text`, `flops` or `computes`, by name of the field.
        fields: other values of fields.
    """

    def __init__(self, known: Kernel, make: Mapping[str, Callable[[], Any]], **fields: Any) -> None:
        kept = {name: value for name, value in known.__dict__.items() if name not in make}
        self.__dict__.update(kept, **fields, _make={**kept.get("_make", {}), **make})

    @cached_property
    def text(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.__dict__["_make"]["text"]()

    @cached_property
    def flops(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.__dict__["_make"]["flops"]()

    @cached_property
    def computes(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.__dict__["_make"]["computes"]()


@dataclass(eq=False, repr=False)
class Kernels(Sequence[Kernel]):
    """Kernel records that are made when somebody first reads them: calls of a program do not."""

    make: Callable[[], Sequence[Kernel]]

    @cached_property
    def made(self) -> Sequence[Kernel]:
        return self.make()

    @overload
    def __getitem__(self, place: int) -> Kernel: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Kernel]: ...
    def __getitem__(self, place: int | slice) -> Kernel | Sequence[Kernel]:
        return self.made[place]

    def __len__(self) -> int:
        return len(self.made)


def source_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Shortens `block.py:42 Attn.wq` to `block.py:42`, without duplicates, sorted by line within
    files.
    """
    found = dict.fromkeys(line.split(" ")[0] for line in lines)
    files = list(dict.fromkeys(place.rpartition(":")[0] for place in found))

    def order(place: str) -> tuple[int, int]:
        file, _, number = place.rpartition(":")
        return files.index(file), int(number) if number.isdigit() else 0

    return tuple(sorted(found, key=order))


def module_paths(lines: Iterable[str]) -> tuple[str, ...]:
    """Returns the modules of source lines: `attn.wq` of `block.py:42 attn.wq`."""
    return tuple(filter(None, dict.fromkeys(line.partition(" ")[2] for line in lines)))


# a call with a framework's arrays; returns None without running for other kinds of arrays
Direct = Callable[[Sequence[Any]], list[Any] | None]
# Takes the addresses of dense arrays, and a function that returns the array with a number. Returns
# None without running for memory that kernels cannot read.
CallDense = Callable[[list[int], Callable[[int], Any]], list[Any] | None]


@dataclass(frozen=True)
class CallLayout:
    """Describes how a framework's arrays are passed to a program and results are returned.

    Attributes:
        count: number of arrays of a call.
        is_alike: takes arrays one by one; True if the program may use their addresses.
        address: returns the address of an array's first element.
        make: allocates a result with a given layout.
        layouts: arguments of `make`, for each result of the call.
        places: for each parameter of the program the index of the call's array.
        numbers: for each result of the program the index of the call's result.
    """

    count: int
    is_alike: Callable[..., bool]
    address: Callable[[Any], int]
    make: Callable[..., Any]
    layouts: Sequence[tuple[Any, ...]]
    places: Sequence[int]
    numbers: Sequence[int]


@dataclass(frozen=True)
class AddressProgram:
    """A program that runs on the caller's memory, without array objects.

    Attributes:
        call: takes addresses of dense storage: of the parameters, then of results to fill in.
        shapes: shapes of the results.
        frees: True if a call on arrays would release large ones before it ends.
        entered: makes one native function of the whole call, which also returns None if memory is
            short; None if machine code cannot do this.
        device: the device of the memory: "cpu", "cuda" or "cuda:1".
        alignment: bytes of which every address is a multiple.
        is_current: True if the calling thread allocates and launches on that device.
    """

    call: Callable[[Sequence[int]], None]
    shapes: Sequence[tuple[int, ...]]
    frees: bool
    entered: Callable[[CallLayout], Direct | None] = lambda _: None
    device: str = "cpu"
    alignment: int = 1
    is_current: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class FrozenValues:
    """Values that a program computes from its weights only, which are reused while these do not
    change.

    Attributes:
        weights: numbers of the parameters that they depend on.
        prepare: computes the values from storage arrays, one for each parameter.
        call: takes the values, and storage arrays for all parameters; returns results as `run`
            does.
        by_address: returns how to call it with addresses of the values, of all parameters, and of
            results to fill in; None if it cannot be called so.
        bytes: size of the values.
        given: numbers of the parameters that the other part takes after the values.
    """

    weights: tuple[int, ...]
    prepare: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
    call: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], list[np.ndarray]]
    by_address: Callable[[], AddressProgram | None]
    bytes: int
    given: tuple[int, ...]


@dataclass
class Executable:
    """A compiled program.

    Attributes:
        run: storage arrays (C order, bf16 as uint16), one for each parameter, to result arrays of
            the same kind, which the caller owns.
        kernels: kernels in execution order; equal kernels are listed once for each call. Often
            `Kernels`, which are made on the first read.
        artifacts: later stages as text: "mlir", "llvm", "asm", "hlo", "inductor", "tir". A value
            may be a function that returns the text.
        counts_what: the unit of `len(kernels)`, in words.
        prepare: numpy storage arrays to the backend's own arrays (default: the same).
        call: runs on prepared arrays, for timing without conversions (default: `run`).
        finish: results of `call` to numpy storage arrays.
        device: the device of `call`: "cpu", "cuda" or "cuda:1".
        accept: converts a framework's arrays on `device` to arguments of `call`, without a copy
            (DLPack; torch tensors unchanged). Results of `call` then go back to the framework
            unchanged. None if only storage arrays are accepted.
        wait: waits until all calls are done, if `call` is asynchronous.
        arrays: the frontend whose arrays `call` works on. Memory of other frameworks is only
            borrowed: the caller must wait for the call before releasing it.
        by_address: returns how to call it on addresses; None if it cannot be called so.
        call_dense: `call` without conversions, on dense arrays of the frontend `arrays`; None if
            there is no such way.
        peak_bytes: maximum memory for intermediates and results, or None if unknown.
        note: how it was tuned, or what is missing.
        drain: like `run`, for an iterator of arrays: releases each array after its last use. None
            if all of them are kept.
        stepwise: the reason why calls launch kernels one by one; empty if they replay a device
            graph, or if there is none.
        frozen: how to cache values that depend only on weights; None if each call computes them.
        foreign: returns its kernels as custom calls of XLA; None if XLA cannot call them.
    """

    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
    kernels: Sequence[Kernel] = ()
    artifacts: dict[str, str | Callable[[], str]] = field(default_factory=dict)
    counts_what: str = "kernels"
    prepare: Callable[[Sequence[np.ndarray]], Any] | None = None
    call: Callable[[Any], Any] | None = None
    finish: Callable[[Any], list[np.ndarray]] | None = None
    device: str = "cpu"
    accept: Callable[[Sequence[Any]], Any] | None = None
    wait: Callable[[], None] | None = None
    arrays: str = ""
    by_address: Callable[[], AddressProgram | None] = lambda: None
    call_dense: CallDense | None = None
    peak_bytes: int | None = None
    note: str = ""
    profile: Callable[[Sequence[np.ndarray]], list[float]] | None = None  # seconds per kernel
    stepwise: Callable[[], str] = str
    drain: Callable[[Iterator[np.ndarray]], list[np.ndarray]] | None = None
    frozen: FrozenValues | None = None
    foreign: Callable[[], ForeignSteps | None] = lambda: None


# kernels, and later stages by name as text or as a function that returns it
Inspected = tuple[Sequence[Kernel], dict[str, str | Callable[[], str]]]


@dataclass(frozen=True)
class Resume:
    """Resuming a compilation from kernels that were edited by hand.

    Attributes:
        stages: names of the artifacts whose text can be edited.
        compile: `(lowered function, text by kernel, options) -> Executable`; kernels without text
            are printed. Raises ParseError with the line and column in a text.
    """

    stages: tuple[str, ...]
    compile: Callable[[Func, Mapping[str, str], dict[str, Any]], Executable]


@dataclass(frozen=True)
class Lowering:
    """The passes that lower a function for a backend, as text.

    Attributes:
        level: the level of functions that `compile` takes.
        stages: `(stage name, pass pipeline)` that lower a tensor-level function to that level.
        artifacts: names of the stages after them, which `Executable.artifacts` contains.
        retreat: passes that compute groups marked `refused` in another way; "" if a rejected kernel
            is an error.
        proposal: passes that give each group several schedules before the last of `stages`, best
            first; "" if there is no choice to measure.
        hosts: the device on which its programs call handwritten code for hosted operators: "cpu",
            "cuda"; "" if they call none.
        resume: support for kernels edited by hand; None if there is none.
        steps: a function, as `module:name`, that takes a group of stage `scheduled` and a target.
            It returns the group's loop nest and the kernel after each step of its schedule, each
            with a description and reason; "" if there is none.
        inner: a function, as `module:name`, that takes the texts of a run's kernels, its lowered
            function and its target. It yields the passes of the backend's own compiler, each with
            the text after it; "" if there is none.
        recomputes: True if matmul results that are only reduced stay out of memory, so that a
            backward pass recomputes them if that costs less than saving them.
    """

    level: str = "tensor"
    stages: tuple[tuple[str, str], ...] = ()
    artifacts: tuple[str, ...] = ()
    retreat: str = ""
    proposal: str = ""
    hosts: str = ""
    resume: Resume | None = None
    steps: str = ""
    inner: str = ""
    recomputes: bool = False


@dataclass(frozen=True)
class Machine:
    """The machine that runs a backend's code.

    Attributes:
        warm: starts slow-starting services and returns at once; called with the user's options when
            capture of a program begins.
        identify: returns the device that options name and the versions for which a measurement is
            valid.
        at_hand: returns the target for the device that options name: this machine's, or the
            reference if there is none. None for peers, which detect their machine.
        kind: "cpu" or "gpu", the kind of targets that it takes; "" for peers. Known without a
            search for devices, which imports a framework.
        start: starts to compile a kernel of a function that is being lowered, in another process;
            called with the options of `compile`, which waits for it.
        limits: the limitations of the backend on this machine, in one sentence; "" if there are
            none.
    """

    warm: Callable[[Mapping[str, Any]], None] | None = None
    identify: Callable[[dict[str, Any]], str] | None = None
    at_hand: Callable[[Mapping[str, Any]], Target] | None = None
    limits: Callable[[], str] | None = None
    kind: str = ""
    start: Callable[[dict[str, Any], Node], None] | None = None


@dataclass(frozen=True)
class Peer:
    """Another compiler, which takes the tensor level.

    Attributes:
        native: its own path for the user's callable: `(captured, options) -> Executable`, whose
            `run` takes the same storage arrays; None if it has none.
        isolate: True if it may crash the process, so that it is measured in a separate one.
    """

    native: Callable[[Any, dict[str, Any]], Executable] | None = None
    isolate: bool = False


@dataclass(frozen=True)
class Backend:
    """A code generator or a peer. Entry point group `stack.backends`; the object is BACKEND.

    Attributes:
        compile: compiles a lowered function to an executable. Its docstring describes the backend
            and its options.
        missing: returns None if it can run here, else the requirement (an extra, a device).
        lowering: how functions are lowered for it.
        inspect: kernels and later stages of a lowered function for `options["target"]`, a machine
            that need not be here; None for backends that compile for this machine only.
        options: names of the options that `compile` accepts from a user; None accepts any.
        machine: the machine that runs its code.
        peer: for another compiler; None for our own code generators.
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
        """A description of the backend, then of its options."""
        return getdoc(self.compile) or ""
