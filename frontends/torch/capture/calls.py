"""Calls of a captured torch program: arguments, results, and checks.

Index inputs are checked before a call, as eager does. On a CPU a wrong index raises IndexError. On
a GPU the device asserts asynchronously, and a wrong index aborts the device's work, as in eager.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stack.errors import StackError
from stack.frameworks.torch_private import pytree
from stack.frontends.torch.aten.lowering import IndexCheck, Promise
from stack.frontends.torch.importer.dims import Sizes
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE
from stack.frontends.torch.tensors.size_symbols import size_number, size_values
from stack.ir.node import Node

# ---- arguments


@dataclass(frozen=True)
class Leaf:
    """A value in the nested example arguments: a tensor, by its number, or else a fixed value."""

    name: str
    tensor: int | None
    value: Any = None


@dataclass(frozen=True)
class Arguments:
    """The nested structure of the example arguments; later calls must have the same one.

    Attributes:
        signature: that of the user's callable; None if it has none.
        spec: the containers around the leaves.
        leaves: the values in them, in order.
        tensors: the tensors among them.
        tensor_names: their names.
    """

    signature: inspect.Signature | None
    spec: pytree.TreeSpec
    leaves: Sequence[Leaf]
    tensors: Sequence[torch.Tensor]
    tensor_names: Sequence[str]

    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Returns the tensors of a call. Raises TypeError for another structure."""
        if kwargs:
            args = self._positional(args, kwargs)
        values, spec = pytree.tree_flatten(tuple(args))
        if spec != self.spec:
            raise TypeError(f"arguments have the structure {spec}, compiled for {self.spec}")
        tensors: list[torch.Tensor] = []
        for leaf, value in zip(self.leaves, values, strict=True):
            if leaf.tensor is not None:
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"argument {leaf.name!r} is a tensor, got {value!r}")
                known = self.tensors[leaf.tensor].device
                if value.device != known:
                    raise TypeError(
                        f"argument {leaf.name!r} was on {known} when it was compiled, it is on"
                        f" {value.device}"
                    )
                tensors.append(value)
            elif type(value) is not type(leaf.value) or value != leaf.value:
                raise TypeError(
                    f"argument {leaf.name!r} was {leaf.value!r} when it was compiled, got {value!r}"
                )
        return tensors

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if self.signature is None:
            raise TypeError("takes positional arguments only")
        given = self.signature.bind(*args, **kwargs)
        if given.kwargs:
            raise TypeError(f"not compiled for the keywords {', '.join(given.kwargs)}")
        return given.args


# ---- a call


@dataclass(eq=False)
class Call:
    """Converts a user's arguments to the tensors of the program, after checking them.

    Remembers them, since some results are written back to them or return them.

    Attributes:
        params: the parameters of the program for the tensors among the arguments.
        checks: bounds of index inputs, with the numbers of these among the tensors.
        symbols: assumptions of tracing about symbolic sizes; None without symbols.
        sound: shapes that were checked against them.
    """

    arguments: Arguments
    params: Sequence[Node]
    checks: Sequence[tuple[int, IndexCheck]]
    symbols: Sizes | None
    sound: set[tuple[tuple[int, ...], ...]] = field(
        default_factory=set[tuple[tuple[int, ...], ...]]
    )
    local: threading.local = field(default_factory=threading.local)

    def __call__(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        tensors = self.arguments.match(args, kwargs)
        for p, tensor in zip(self.params, tensors, strict=True):
            check_tensor(p, tensor)
        self._check_sizes(tensors)
        for place, check in self.checks:
            check_index(check, tensors[place], tensors, self.params)
        self.local.tensors = tensors
        return tensors

    def _check_sizes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise ValueError if sizes violate an assumption of tracing."""
        key = tuple(tuple(t.shape) for t in tensors)
        if self.symbols is None or key in self.sound:
            return
        broken = self.symbols.broken(size_values(tensors, self.params))
        if broken is not None:
            raise ValueError(f"compiled for sizes where {broken}; got shapes {list(key)}")
        self.sound.add(key)

    @property
    def last(self) -> list[torch.Tensor]:
        return self.local.tensors


def check_tensor(p: Node, tensor: torch.Tensor) -> None:
    """Check an argument against its parameter. Raises TypeError or ValueError with its name."""
    name = p.attrs["name"]
    if tensor.dtype is not TORCH_DTYPE[p.dtype]:
        raise TypeError(f"argument {name!r} is {p.type}, got {tensor.dtype}")
    fixed = [s if isinstance(s, int) else None for s in p.shape]
    shape = list(tensor.shape)
    agree = len(fixed) == len(shape) and all(
        f is None or f == s for f, s in zip(fixed, shape, strict=True)
    )
    if not agree:
        raise ValueError(f"argument {name!r} is {p.type}, got shape {shape}")


_ERRORS: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "RuntimeError": RuntimeError,
    "LinAlgError": torch.linalg.LinAlgError,  # pyright: ignore[reportPrivateImportUsage]
}


def kept_promises(results: Sequence[Any], promises: Sequence[Promise]) -> Sequence[Any]:
    """Returns the results without the promises at their end. Raises if a promise is false."""
    count = len(results) - len(promises)
    for holds, promise in zip(results[count:], promises, strict=True):
        if promise.error == "IndexError" and holds.device.type == "cuda":
            assert_on_device(holds, promise.text)
        elif not holds.is_meta and not bool(holds):
            raise _ERRORS[promise.error](promise.text)
    return results[:count]


@dataclass(frozen=True)
class Template:
    """The structure of the user's return value: results, arguments and fixed values."""

    spec: pytree.TreeSpec
    parts: list[tuple[str, Any]]

    def fill(self, results: Sequence[Any], arguments: Sequence[Any]) -> Any:
        held = {"result": results, "argument": arguments}
        leaves = [v if kind == "fixed" else held[kind][v] for kind, v in self.parts]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(eq=False)
class Finish:
    """Converts the results of a program to the user's return value.

    Before, it raises the errors of conditions that are checked after a run, and copies new values
    to inputs and buffers that the program writes to.
    """

    call: Call
    template: Template
    writes: Sequence[tuple[int, Any]]
    promises: Sequence[Promise]

    def __call__(self, results: Sequence[Any]) -> Any:
        results = kept_promises(results, self.promises)
        with torch.no_grad():
            for number, place in self.writes:
                target = self.call.last[place] if isinstance(place, int) else place
                target.copy_(results[number])
        uses_arguments = any(kind == "argument" for kind, _ in self.template.parts)
        return self.template.fill(results, self.call.last if uses_arguments else ())

    def results(self, out: Any, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the results of the program from what the user's callable returned: the inverse of
        a call. Conditions hold, since the callable did not raise.

        Raises StackError for a program that writes to a weight, which differs in the next call.
        """
        leaves = zip(self.template.parts, pytree.tree_leaves(out), strict=True)
        found = {number: leaf for (kind, number), leaf in leaves if kind == "result"}
        for number, place in self.writes:
            if not isinstance(place, int):
                raise StackError("the program writes to its weights, so no two calls are equal")
            found[number] = arguments[place]
        return [
            *map(found.__getitem__, sorted(found)),
            *(torch.tensor(True) for _ in self.promises),
        ]


_ASSERTS = "cuda"  # devices that assert asynchronously
# takes a scalar and a message; returns without waiting
assert_on_device: Any = torch.ops.aten._assert_async.msg


def check_index(
    check: IndexCheck, index: torch.Tensor, tensors: Sequence[torch.Tensor], params: Sequence[Node]
) -> None:
    """Check one index tensor against its bounds."""
    if not index.numel() or index.is_meta:  # nothing to check
        return
    low, high = (size_number(v, tensors, params) for v in (check.low, check.high))
    name = check.param.attrs["name"]
    place = f"argument {name!r}, which {check.what} reads at {low} to {high}"
    if index.device.type == _ASSERTS:
        inside = (index >= low) & (index <= high)
        for ignored in check.besides:
            inside |= index == ignored
        assert_on_device(inside.all(), f"index out of range in {place}")
        return
    for ignored in check.besides:
        index = index[index != ignored]
    if not index.numel():
        return
    least, most = (int(v) for v in torch.aminmax(index))
    if least < low or most > high:
        bad = least if least < low else most
        raise IndexError(f"index out of range: {bad} in {place}")
