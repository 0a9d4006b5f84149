"""What a frontend gives: a captured program, and a way for arrays to cross."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from stack.hosted import Op
from stack.ir.node import Func
from stack.ir.space import ArraySpace
from stack.ir.types import DType, TensorType
from stack.run.backend import ByAddress, Direct

RECORD = "record"  # in place of a backend: see `Frontend.train_runs`


class Held(Protocol):
    """Memory that stays while somebody holds this."""

    @property
    def addresses(self) -> Sequence[int]: ...


Arrays = Sequence[Any]
Finds = Callable[[Arrays], Held | None]


@dataclass
class Captured:
    """One program as a frontend found it.

    The parameters of `func` are `bound` (weights, buffers, closed-over arrays), then what
    `flatten(*args)` gives, in order.

    Attributes:
        func: the imported function, tensor level; unsupported ops are `opaque` nodes.
        text: the program as the framework prints it (FX code, a jaxpr).
        bound: framework arrays for the first parameters.
        flatten: user arguments to framework arrays for the remaining parameters. Raises what
            eager raises for arguments of the wrong structure.
        unflatten: framework arrays, one for each result, to what the user's function returns.
        original: the user's callable, for a peer's own path.
        args: the example arguments.
        notes: graph breaks, guards, decompiled code: title to text.
        device: where its arrays are: "cpu", "cuda" or "cuda:1".
        is_lent: whether the caller holds what it passes until a call ends; else the last reader
            may let go of it.
        arguments: names of the parameters that are the user's arguments.
        weights: names of the parameters that stay from call to call: no argument, not written by
            the program, and without gradients here.
    """

    func: Func
    text: str
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


@dataclass(frozen=True)
class Entry:
    """A target as something to compile.

    Attributes:
        fn: what is called.
        args: example arguments, where the target has some.
        signature: the function that says which arguments calls take; default: `fn`.
        facade: the class of what `stack.compile` gives, a subclass of `Compiled`; None for that.
    """

    fn: Any
    args: tuple[Any, ...] | None = None
    signature: Callable[..., Any] | None = None
    facade: type[Any] | None = None


class Calls(Protocol):
    """A user's callable, captured and compiled as its calls need it, guarded by its framework.

    `graphs` are the compiled graphs, `gradients` those of backward passes; oldest first.
    """

    @property
    def graphs(self) -> Sequence[Any]: ...

    @property
    def gradients(self) -> Sequence[Any]: ...

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compile for these arguments; nothing runs. Raises StackError where there is no graph."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class Frontend(Protocol):
    """One framework. Entry point group `stack.frontends`; the object is named FRONTEND."""

    name: str

    def accepts(self, fn: Any, args: Sequence[Any]) -> bool:
        """Whether `fn`, called with `args`, belongs to this framework."""
        ...

    def entry(self, target: Any) -> Entry | None:
        """A target of the framework's as something to compile; None for any other callable."""
        ...

    def capture(self, fn: Any, args: Sequence[Any], *, dynamic: bool = False) -> Captured:
        """Trace without running on data. `dynamic` makes sizes that may vary symbolic."""
        ...

    def calls(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> Calls:
        """`fn` under our compiler; `options` as for `stack.compile`, with `label`."""
        ...

    def to_numpy(self, array: Any, dtype: DType) -> np.ndarray:
        """Storage of a framework array, without a copy where it is dense on the CPU.

        bf16 comes as uint16 bit patterns. Raises TypeError when the element type is not `dtype`.
        """
        ...

    def from_numpy(self, array: np.ndarray, dtype: DType) -> Any:
        """A framework array over the storage (bf16 as uint16), without a copy where possible."""
        ...

    def direct(
        self, program: ByAddress, arrays: Arrays, returned: Sequence[DType], kept: Finds | None
    ) -> Direct | None:
        """What calls a program with arrays like these, which crossed without a copy.

        It gives None, and runs nothing, for arrays of another kind. None where these cannot be
        called so. `kept`: what finds memory whose addresses go before those of the arrays; where
        it gives None nothing runs either.
        """
        ...

    def stamp(self, array: Any) -> tuple[Hashable, Hashable]:
        """The memory of an array, and its version, which changes where the framework writes there.

        No version, None, where the framework does not count writes.
        """
        ...

    def watch(self, array: Any) -> Callable[[], bool]:
        """Whether somebody still has the memory of an array.

        While the answer can be asked for, no other memory has its stamp.
        """
        ...

    def to_device(self, arrays: Sequence[Any], dtypes: Sequence[DType], device: str) -> list[Any]:
        """Arrays of the framework, dense and on the device: each itself where it is that already.

        Raises TypeError when an element type is not that of `dtypes`.
        """
        ...

    def from_device(self, arrays: Sequence[Any]) -> list[Any]:
        """Framework arrays over arrays of a device (anything with DLPack), without a copy."""
        ...

    def space(self) -> ArraySpace:
        """The meaning of ops in this framework's arrays: replays a Func there."""
        ...

    def call_opaque(self, target: str, call: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run what an `opaque` node names, on storage arrays."""
        ...

    def hosted(self, made: Op) -> Callable[..., Any]:
        """A declared operator as one of the framework's: on its arrays, attributes by name."""
        ...

    def traced(self, fn: Callable[..., Any], types: Sequence[TensorType]) -> Func:
        """A function of arrays of the framework, written out; also while another is captured."""
        ...

    def breaks(self, fn: Any, args: Sequence[Any]) -> list[str]:
        """Where the framework cannot follow a program in one graph, and why; runs it."""
        ...

    def random_inputs(self, specs: Sequence[str]) -> tuple[Any, ...]:
        """Example arguments from texts such as `f32[2,16,64]`."""
        ...

    def train_runs(self, fn: Any, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        """Compile the gradients of the sum of all results too; the `Run` of every graph, in order.

        `options` are those of `stack.compile`; backend `RECORD` imports graphs without compiling
        or running them, as they are cut for backend `cut_for`. The last word of a run's target
        says its role: "forward", "backward".
        """
        ...
