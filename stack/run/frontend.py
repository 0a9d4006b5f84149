"""The interface of frontends: a captured program, and conversion of arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

import stack.plugins as plugins
from stack.ir.func import Func
from stack.ir.types import DType
from stack.run.backend import AddressProgram, Direct

RECORD = "record"  # instead of a backend: see `Frontend.train_runs`


class MemoryReference(Protocol):
    """Keeps memory alive while this object exists."""

    @property
    def addresses(self) -> Sequence[int]: ...


Arrays = Sequence[Any]
Finds = Callable[[Arrays], MemoryReference | None]


@dataclass
class Captured:
    """One program as a frontend captured it.

    The parameters of `func` are `bound` (weights, buffers, closed-over arrays), then the results of
    `flatten(*args)`, in order.

    Attributes:
        func: the imported function, tensor level; unsupported ops are `opaque` nodes.
        make_text: prints the program as the framework does (FX code, a jaxpr); see `text`.
        bound: framework arrays for the first parameters.
        flatten: user arguments to framework arrays for the remaining parameters. Raises eager's
            errors for arguments of the wrong structure.
        unflatten: framework arrays, one for each result, to the return value of the user's
            function.
        original: the user's callable, for a peer's own path.
        args: the example arguments.
        notes: graph breaks, guards, decompiled code: title to text.
        device: the device of its arrays: "cpu", "cuda" or "cuda:1".
        is_lent: True if the caller keeps its arguments alive until a call ends; otherwise they may
            be released after their last use.
        arguments: names of the parameters that are the user's arguments.
        weights: names of the parameters that do not change between calls: not arguments, not
            written by the program, and without gradients here.
        known: stages that are not lowered again, by name, passes and function before them.
        meanwhile: work to do before a backend waits for kernels that other processes compile.
    """

    func: Func
    make_text: Callable[[], str]
    bound: Sequence[Any]
    flatten: Callable[..., list[Any]]
    unflatten: Callable[[list[Any]], Any]
    original: Callable[..., Any]
    args: tuple[Any, ...]
    notes: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    is_lent: bool = True
    arguments: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    known: dict[Any, Any] = field(default_factory=dict[Any, Any])
    meanwhile: Callable[[], object] | None = None

    @cached_property
    def text(self) -> str:
        """The program as the framework prints it, made on the first read."""
        return self.make_text()


@dataclass(frozen=True)
class Entry:
    """A target prepared for compilation.

    Attributes:
        fn: the callable.
        args: example arguments, if the target has some.
        signature: the function whose signature calls must match; default: `fn`.
        facade: the class that `stack.compile` returns, a subclass of `Compiled`; None for
            `Compiled`.
    """

    fn: Any
    args: tuple[Any, ...] | None = None
    signature: Callable[..., Any] | None = None
    facade: type[Any] | None = None


class Calls(Protocol):
    """A user's callable, captured and compiled when calls need it, with the guards of its
    framework.

    `graphs` are the compiled graphs, `gradients` those of backward passes; oldest first.
    """

    @property
    def graphs(self) -> Sequence[Any]: ...

    @property
    def gradients(self) -> Sequence[Any]: ...

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compiles for these arguments without running. Raises StackError if there is no graph."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class Frontend(Protocol):
    """One framework. Entry point group `stack.frontends`; the object is named FRONTEND.

    `runs_loops`: the framework runs loops that are not compiled whole; else Python does.
    """

    name: str
    runs_loops: bool

    def accepts(self, fn: Any, args: Sequence[Any]) -> bool:
        """True if `fn`, called with `args`, belongs to this framework."""
        ...

    def entry(self, target: Any) -> Entry | None:
        """A target of this framework as an Entry; None for any other callable."""
        ...

    def capture(self, fn: Any, args: Sequence[Any], *, dynamic: bool = False) -> Captured:
        """Traces without running on data. `dynamic` makes sizes that may vary symbolic."""
        ...

    def calls(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> Calls:
        """`fn`, to be compiled; `options` as for `stack.compile`, with `label`."""
        ...

    def to_numpy(self, array: Any, dtype: DType) -> np.ndarray:
        """Storage of a framework array, without a copy if it is dense on the CPU.

        bf16 becomes uint16 bit patterns. Raises TypeError if the element type is not `dtype`.
        """
        ...

    def from_numpy(self, array: np.ndarray, dtype: DType) -> Any:
        """A framework array over the storage (bf16 as uint16), without a copy where possible."""
        ...

    def direct(
        self, program: AddressProgram, arrays: Arrays, returned: Sequence[DType], kept: Finds | None
    ) -> Direct | None:
        """Returns a fast call of a program for arrays like these, which were converted without a
        copy.

        The call returns None, and runs nothing, for other kinds of arrays. Returns None if there is
        no fast call for these arrays. `kept`: finds cached values whose addresses precede those of
        the arrays; if it returns None, nothing runs either.
        """
        ...

    def stamp(self, array: Any) -> tuple[Hashable, Hashable]:
        """Returns two keys: one of the array's memory, and one of its version, which changes when
        the framework writes to it.

        The version is None if the framework does not count writes.
        """
        ...

    def watch(self, array: Any) -> Callable[[], bool]:
        """Returns a function that returns True while the memory of an array is alive.

        While this function exists, no other memory gets the same stamp.
        """
        ...

    def to_device(self, arrays: Sequence[Any], dtypes: Sequence[DType], device: str) -> list[Any]:
        """Dense arrays of the framework on the device; arrays that are so already are returned
        unchanged.

        Raises TypeError if an element type differs from `dtypes`.
        """
        ...

    def from_device(self, arrays: Sequence[Any]) -> list[Any]:
        """Framework arrays over arrays of a device (anything with DLPack), without a copy."""
        ...

    def call_opaque(self, target: str, call: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs the target of an `opaque` node on storage arrays."""
        ...

    def breaks(self, fn: Any, args: Sequence[Any]) -> list[str]:
        """Runs a program in the framework and returns the reason of each graph break."""
        ...

    def flags(self) -> dict[str, Any]:
        """The framework's settings that affect results or times, by name; for the record."""
        ...

    def random_inputs(self, specs: Sequence[str]) -> tuple[Any, ...]:
        """Example arguments from texts such as `f32[2,16,64]`."""
        ...

    def train_runs(self, fn: Any, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        """Compiles the program and the gradients of the sum of all results; returns the `Run` of
        every graph, in order.

        `options` are those of `stack.compile`. Backend `RECORD` imports graphs without compiling or
        running them, partitioned as for backend `cut_for`. The last word of a run's target is its
        role: "forward", "backward".
        """
        ...


def runs_loops(name: str) -> bool:
    """True if the framework of the frontend `name` runs loops that are not compiled whole."""
    known = plugins.names("stack.frontends")
    return name in known and plugins.load("stack.frontends", name).runs_loops
