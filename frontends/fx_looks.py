"""What calls of torch look like that are given tensors without memory, and tensors made alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_ATOMS = (
    *(bool, int, float, complex, str, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def memory_of(value: Any) -> int:
    """What two tensors have in common that lie in the same memory; -1 for what is no tensor."""
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else -1


class _Unlike(Exception):
    """An operand that cannot be compared with another."""


@dataclass(frozen=True)
class Operands:
    """The tensors that a call is given, each once.

    Calls of equal keys have equal functions and arguments, but for their tensors: those look the
    same, and share memory in the same way.
    """

    key: Hashable
    tensors: Sequence[FakeTensor]


def operands_of(call: Any) -> Operands | None:
    """Those of a function with its arguments; None where it cannot be compared with others."""
    found: dict[int, FakeTensor] = {}
    try:
        key = _key(call, found)
    except _Unlike:
        return None
    return Operands(key, list(found.values()))


def _key(value: Any, found: dict[int, FakeTensor]) -> Hashable:
    if isinstance(value, FakeTensor):
        is_open = value._has_symbolic_sizes_strides or value.layout is not torch.strided
        if is_open or value.constant is not None:
            raise _Unlike
        found.setdefault(id(value), value)
        place = list(found).index(id(value))
        shared = [memory_of(v) for v in found.values()].index(memory_of(value))
        looks = value.shape, value.stride(), value.storage_offset(), value.dtype, value.device
        return (place, shared, *looks, value.requires_grad, value.is_conj(), value.is_neg())
    if isinstance(value, list | tuple):
        return (type(value), *(_key(v, found) for v in value))
    if isinstance(value, dict):
        return (dict, *((k, _key(v, found)) for k, v in value.items()))
    if isinstance(value, slice):
        return slice, _key((value.start, value.stop, value.step), found)
    if type(value) in _ATOMS:
        return type(value), repr(value)  # 0.0 is not -0.0
    if callable(value) and not isinstance(value, torch.Tensor):
        return value
    raise _Unlike


@dataclass(frozen=True)
class Ref:
    """A tensor, or memory, by its number: of operands, or of what is made of them."""

    is_operand: bool
    number: int


@dataclass(frozen=True)
class Value:
    """A tensor that is made anew: what it is like, whose memory it has, and the bytes of that."""

    like: FakeTensor
    memory: Ref
    bytes: int


class Learner:
    """Describes tensors that a call made, for other operands."""

    def __init__(self, operands: Operands) -> None:
        self._memories: dict[int, Ref] = {}
        for i, tensor in enumerate(operands.tensors):
            self._memories.setdefault(memory_of(tensor), Ref(True, i))

    def value(self, made: Any) -> Any:
        """What stands for a tensor; anything else is itself."""
        if not isinstance(made, FakeTensor):
            return made
        memory = self._memories.setdefault(memory_of(made), Ref(False, len(self._memories)))
        return Value(made, memory, made.untyped_storage().nbytes())


class Maker:
    """Makes the tensors that were described, for operands like those that were learned from."""

    def __init__(self, operands: Operands) -> None:
        storages = (t.untyped_storage() for t in operands.tensors)
        self._memories: dict[Ref, Any] = {Ref(True, i): s for i, s in enumerate(storages)}

    def tensor(self, part: Any) -> Any:
        """The tensor that something stands for; anything else is itself."""
        if not isinstance(part, Value):
            return part
        like = part.like
        with torch._C._DisableTorchDispatch(), torch._C._DisablePythonDispatcher():
            if part.memory not in self._memories:
                held = torch.empty(part.bytes, dtype=torch.uint8, device="meta")
                self._memories[part.memory] = held.untyped_storage()
            made = torch.empty(0, dtype=like.dtype, device="meta")
            storage = self._memories[part.memory]
            made.set_(storage, like.storage_offset(), like.shape, like.stride())
            return FakeTensor(like.fake_mode, made, like.device)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments or results with their parts changed."""
    if isinstance(value, list | tuple):
        return type(value)([mapped(v, change) for v in value])  # pyright: ignore
    if isinstance(value, dict):
        return {k: mapped(v, change) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(mapped(v, change) for v in (value.start, value.stop, value.step)))
    return change(value)


def leaves(value: Any) -> list[Any]:
    """The parts of arguments or results."""
    found: list[Any] = []
    mapped(value, found.append)
    return found
