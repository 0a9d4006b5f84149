"""Decomposes ops on lists of tensors, as optimizers use them, to one op per tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from stack.frameworks.torch_private import OpOverload

_PREFIX = "_foreach_"


def _each(op: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Applies an op to the i-th items of all arguments that are lists, for each i.

    Other arguments are the same in each call.
    """
    length = next(len(a) for a in args if isinstance(a, list | tuple))
    columns = [a if isinstance(a, list | tuple) else [a] * length for a in args]
    return [op(*row, **kwargs) for row in zip(*columns, strict=True)]


def _scaled(op: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `addcmul` and `addcdiv`, whose list variants take the factor by position."""
    return lambda x, a, b, value=1: op(x, a, b, value=value)


_OPS: dict[str, Callable[..., Any]] = {
    "addcdiv": _scaled(torch.addcdiv),
    "addcmul": _scaled(torch.addcmul),
    "copy": torch.ops.aten.copy,
    "norm": torch.linalg.vector_norm,
    "zero": torch.zeros_like,
}


def _decompositions() -> Iterator[tuple[OpOverload, Callable[..., Any]]]:
    for name in sorted({n.removesuffix("_") for n in dir(torch) if n.startswith(_PREFIX)}):
        word = name.removeprefix(_PREFIX)
        op = _OPS.get(word) or getattr(torch, word, None)
        if op is None:
            continue
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            is_factors = word in _OPS and overload == "Tensor"  # all factors in one tensor
            if not overload.endswith("out") and not is_factors:
                yield getattr(packet, overload), partial(_each, op)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = dict(_decompositions())
