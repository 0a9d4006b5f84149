"""Keys of torch calls on fake tensors, to recognize equal calls and to copy their results.

Equal calls have the same function, and operands with equal metadata and aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stack.frameworks.torch_private import FakeTensor, memory_id, without_dispatch

_ATOMS = (
    *(bool, int, float, complex, str, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def memory_of(value: Any) -> int:
    """Returns an id of a tensor's memory; -1 if the value is not a tensor."""
    return memory_id(value) if isinstance(value, torch.Tensor) else -1


class _Unlike(Exception):
    """Raised for an operand that a key cannot describe, so its call cannot be compared."""


@dataclass(frozen=True)
class Operands:
    """The tensors among a call's arguments, each once.

    Calls with equal keys have equal functions and arguments. Their tensors may differ, but have the
    same metadata and share memory in the same way.
    """

    key: Hashable
    tensors: Sequence[FakeTensor]


def operands_of(call: Any) -> Operands | None:
    """Returns the operands of a function call; None if it cannot be compared with others."""
    found: dict[int, FakeTensor] = {}
    try:
        key = _key(call, found)
    except _Unlike:
        return None
    return Operands(key, list(found.values()))


def _key(value: Any, found: dict[int, FakeTensor]) -> Hashable:
    if isinstance(value, FakeTensor):
        if value.layout is not torch.strided or value.constant is not None:
            raise _Unlike
        if not all(type(n) is int for n in (*value.shape, *value.stride())):
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
    """A reference, in a description of a call, to a tensor or its memory.

    It is a number among the call's operands, or else among its new values.
    """

    is_operand: bool
    number: int


@dataclass(frozen=True)
class Value:
    """A description of a new tensor: metadata, the memory it uses, and its size in bytes."""

    like: FakeTensor
    memory: Ref
    bytes: int


class Learner:
    """Describes the results of a call independently of its operands."""

    def __init__(self, operands: Operands) -> None:
        self._memories: dict[int, Ref] = {}
        for i, tensor in enumerate(operands.tensors):
            self._memories.setdefault(memory_of(tensor), Ref(True, i))

    def value(self, made: Any) -> Any:
        """Returns the description of a tensor; other values unchanged."""
        if not isinstance(made, FakeTensor):
            return made
        memory = self._memories.setdefault(memory_of(made), Ref(False, len(self._memories)))
        return Value(made, memory, made.untyped_storage().nbytes())


class Maker:
    """Creates fake tensors from the descriptions of `Learner`, for a call with an equal key."""

    def __init__(self, operands: Operands) -> None:
        storages = (t.untyped_storage() for t in operands.tensors)
        self._memories: dict[Ref, Any] = {Ref(True, i): s for i, s in enumerate(storages)}

    def tensor(self, part: Any) -> Any:
        """Returns the tensor of a description; other values unchanged."""
        if not isinstance(part, Value):
            return part
        like = part.like
        with without_dispatch():
            if part.memory not in self._memories:
                held = torch.empty(part.bytes, dtype=torch.uint8, device="meta")
                self._memories[part.memory] = held.untyped_storage()
            made = torch.empty(0, dtype=like.dtype, device="meta")
            storage = self._memories[part.memory]
            made.set_(storage, like.storage_offset(), like.shape, like.stride())
            return FakeTensor(like.fake_mode, made, like.device)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns nested arguments or results with a function applied to each innermost value."""
    if isinstance(value, list | tuple):
        return type(value)([mapped(v, change) for v in value])  # pyright: ignore
    if isinstance(value, dict):
        return {k: mapped(v, change) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(mapped(v, change) for v in (value.start, value.stop, value.step)))
    return change(value)


def leaves(value: Any) -> list[Any]:
    """Returns the innermost values of nested arguments or results, in order."""
    found: list[Any] = []
    mapped(value, found.append)
    return found
