"""Random programs about memory: views, copies, in-place ops, aliases, and worlds to run them in.

A program is a list of instructions on a growing list of tensors, the arguments first. A world is
what a call can see or change: the arguments, which may share memory, and the results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

Tensors = list[torch.Tensor]
Instruction = tuple[str, int, Any]  # op, the tensor it is about, its parameters


def _half(x: torch.Tensor) -> int:
    return x.shape[0] // 2


# name: (smallest rank, function of the tensor, another tensor and numbers)
VIEWS: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    "t": (2, lambda x, y, n: x.transpose(0, 1)),
    "mT": (2, lambda x, y, n: x.mT),
    "data": (0, lambda x, y, n: x.detach()),
    "permute": (2, lambda x, y, n: x.permute(*reversed(range(x.dim())))),
    "tail": (1, lambda x, y, n: x[_half(x) :]),
    "step": (1, lambda x, y, n: x[::2]),
    "narrow": (1, lambda x, y, n: x.narrow(0, 0, max(x.shape[0] - 1, 0))),
    "select": (1, lambda x, y, n: x[-1]),
    "last axis": (1, lambda x, y, n: x[..., n % 2 :]),
    "unsqueeze": (0, lambda x, y, n: x.unsqueeze(n % (x.dim() + 1))),
    "squeeze": (0, lambda x, y, n: x.squeeze()),
    "expand": (0, lambda x, y, n: x.unsqueeze(0).expand(2, *x.shape)),
    "flatten": (1, lambda x, y, n: x.reshape(-1)),
    "unflatten": (1, lambda x, y, n: x.unflatten(0, (-1, 1))),
    "chunk": (1, lambda x, y, n: x.chunk(2, 0)[-1]),
    "split": (1, lambda x, y, n: x.tensor_split(3, 0)[n % 3]),
    "diagonal": (2, lambda x, y, n: x.diagonal()),
    "unbind": (1, lambda x, y, n: x.unbind(0)[n % x.shape[0]]),
    "view_as": (0, lambda x, y, n: x.view_as(x)),
    "strided": (1, lambda x, y, n: x.as_strided((2, 2), (1, 1), n % 3)),
}
COPIES: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    "clone": (0, lambda x, y, n: x.clone()),
    "contiguous": (0, lambda x, y, n: x.contiguous()),
    "repeat": (1, lambda x, y, n: x.repeat([1] * x.dim())),
    "roll": (1, lambda x, y, n: x.roll(x.shape[0], 0)),
    "pad": (1, lambda x, y, n: torch.nn.functional.pad(x, (0, n % 2))),
    "cat": (1, lambda x, y, n: torch.cat([x])),
    "to": (0, lambda x, y, n: x.to(x.dtype, copy=True)),
    "to itself": (0, lambda x, y, n: x.to(x.dtype)),
    "whole": (1, lambda x, y, n: x[:].clone()),
    "stack": (0, lambda x, y, n: torch.stack([x, x])),
    "add": (0, lambda x, y, n: x + n),
    "add zero": (0, lambda x, y, n: x + 0),
    "mul": (0, lambda x, y, n: x * y),
    "sin": (0, lambda x, y, n: x.sin()),
    "sum": (0, lambda x, y, n: x.sum()),
    "sum axis": (1, lambda x, y, n: x.sum(-1)),
    "where": (0, lambda x, y, n: torch.where(x > 0, x, -x)),
    "flip": (1, lambda x, y, n: x.flip(0)),
    "sizes": (1, lambda x, y, n: x * x.shape[0] + x.stride(0)),
    "layout": (1, lambda x, y, n: x + 1 if x.is_contiguous() else x - 1),
    "same": (0, lambda x, y, n: x * 2 if x is y else x * 3),
}
WRITES: dict[str, tuple[int, Callable[..., Any]]] = {
    "add_": (0, lambda x, y, n: x.add_(n)),
    "mul_": (0, lambda x, y, n: x.mul_(2)),
    "zero_": (0, lambda x, y, n: x.zero_()),
    "copy_": (0, lambda x, y, n: x.copy_(y)),
    "row": (1, lambda x, y, n: x[0].fill_(n)),
    "assign": (1, lambda x, y, n: x.__setitem__((Ellipsis, slice(0, 1)), n)),
    "add view": (2, lambda x, y, n: x.transpose(0, 1).add_(1)),
    "sin_": (0, lambda x, y, n: x.sin_()),
}
TABLES = VIEWS | COPIES | WRITES
NUMBERS = (0, 1, -2, 3)


@dataclass(frozen=True)
class Program:
    """A function of tensors; `text` tells what it does."""

    steps: tuple[Instruction, ...]
    returned: tuple[int, ...]

    def __call__(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = list(args)
        for op, place, (other, number) in self.steps:
            made = TABLES[op][1](held[place], held[other], number)
            if op not in WRITES:
                held.append(made)
        return tuple(held[i] for i in self.returned)

    @property
    def text(self) -> str:
        return f"steps={self.steps!r}, returned={self.returned!r}"


def draw(rng: random.Random, args: Tensors, may_write: bool) -> Program:
    """A program that eager can run on these arguments."""
    held = list(args)
    steps: list[Instruction] = []
    kinds = [VIEWS, VIEWS, COPIES, WRITES] if may_write else [VIEWS, VIEWS, COPIES]
    for _ in range(rng.randint(1, 5)):
        table = rng.choice(kinds)
        op = rng.choice(list(table))
        place, other = rng.randrange(len(held)), rng.randrange(len(held))
        number = rng.choice(NUMBERS)
        if held[place].dim() < table[op][0]:
            continue
        if op in WRITES and not _is_defined(op, held[place], held[other]):
            continue
        try:
            made = table[op][1](held[place], held[other], number)
        except (RuntimeError, IndexError, ZeroDivisionError):
            continue
        if op not in WRITES:
            held.append(made)
        steps.append((op, place, (other, number)))
    count = rng.randint(1, 3)
    recent = list(range(max(0, len(held) - 3), len(held)))
    returned = tuple(rng.choice([*recent, *recent, *range(len(held))]) for _ in range(count))
    return Program(tuple(steps), returned)


def _is_defined(op: str, x: torch.Tensor, y: torch.Tensor) -> bool:
    """True if a write has one meaning: no element is written twice or still has to be read."""
    places = _places(x)
    if len(set(places)) < len(places):
        return False
    shares = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    return op != "copy_" or not shares or places == _places(y) or not {*places} & {*_places(y)}


def _places(x: torch.Tensor) -> list[int]:
    """The offset in its storage of each element of a tensor."""
    steps = [[s * i for i in range(n)] for n, s in zip(x.shape, x.stride(), strict=True)]
    return [x.storage_offset() + sum(at) for at in product(*steps)]


# ---- arguments


KINDS = ("dense", "dense", "t", "step", "offset", "scalar", "same", "overlap", "3d")


def arguments(rng: random.Random, sizes: Sequence[int]) -> Tensors:
    """One to three tensors, of many layouts; some share memory, or are the same tensor."""
    a, b = sizes
    count = rng.randint(1, 3)
    made: Tensors = []
    for _ in range(count):
        kind = rng.choice(KINDS)
        seed = torch.Generator().manual_seed(rng.randrange(1 << 30))
        if kind == "same" and made:
            made.append(made[-1])
        elif kind == "overlap" and made and made[-1].dim():
            made.append(made[-1][_half(made[-1]) :])
        elif kind == "t":
            made.append(torch.randn(b, a, generator=seed).t())
        elif kind == "step":
            made.append(torch.randn(a, 2 * b, generator=seed)[:, ::2])
        elif kind == "offset":
            made.append(torch.randn(a + 1, b + 1, generator=seed)[1:, 1:])
        elif kind == "scalar":
            made.append(torch.randn((), generator=seed))
        elif kind == "3d":
            made.append(torch.randn(2, a, b, generator=seed).permute(2, 0, 1))
        else:
            made.append(torch.randn(a, b, generator=seed))
    return made


def copied(args: Sequence[torch.Tensor], grad: bool, device: str = "cpu") -> Tensors:
    """The same tensors in memory of their own, sharing among themselves what was shared."""
    storages: dict[int, torch.Tensor] = {}
    seen: dict[int, torch.Tensor] = {}
    made: Tensors = []
    for x in args:
        if id(x) not in seen:
            key = x.untyped_storage().data_ptr()
            if key not in storages:
                flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
                storages[key] = flat.detach().to(device, copy=True)
            y = storages[key].as_strided(x.shape, x.stride(), x.storage_offset())
            seen[id(x)] = y.detach().requires_grad_() if grad else y
        made.append(seen[id(x)])
    return made


# ---- worlds


def sharing(results: Sequence[Any], args: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """The results that share memory with arguments and with other results."""
    pointers = [t.untyped_storage().data_ptr() if t.numel() else -1 for t in (*args, *results)]
    return [tuple(j for j, q in enumerate(pointers) if q == p and p != -1) for p in pointers]


def _strides(x: torch.Tensor) -> list[int]:
    """Strides, 0 for axes of one element and where nothing is: there they say nothing."""
    return [s if n > 1 and x.numel() else 0 for n, s in zip(x.shape, x.stride(), strict=True)]


def world(fn: Callable[..., Any], args: Tensors, grad: bool) -> dict[str, Any]:
    """Everything that a call leaves behind, and what later writes to its results do."""
    leaves = list(dict.fromkeys(args))
    results = fn(*args)
    seen: dict[str, Any] = {
        "values": [r.detach().clone() for r in results],
        "strides": [_strides(r) for r in results],
        "shared": sharing(results, args),
        "identity": [[r is x for x in args] for r in results],
        "arguments": [x.detach().clone() for x in args],
        "grad": [r.requires_grad for r in results],
    }
    if grad:
        wanted = [r.sum() for r in results if r.requires_grad]
        if wanted:
            gradients = torch.autograd.grad(sum(wanted), leaves, allow_unused=True)
            seen["gradients"] = [torch.zeros(()) if g is None else g for g in gradients]
        return seen
    for r in dict.fromkeys(results):
        _write(r)
    seen["after"] = [t.detach().clone() for t in (*results, *args)]
    return seen


def _write(r: torch.Tensor) -> None:
    try:
        with torch.no_grad():
            r.add_(1)
    except RuntimeError:  # an expanded tensor: one place stands for several elements
        pass


def difference(mine: dict[str, Any], eager: dict[str, Any]) -> str:
    """The differences, in words; empty if there are none."""
    for key, want in eager.items():
        got = mine[key]
        if key in ("values", "arguments", "after", "gradients"):
            for i, (g, w) in enumerate(zip(got, want, strict=True)):
                if g.shape != w.shape or g.dtype != w.dtype:
                    return f"{key} {i}: {g.dtype} {list(g.shape)}, not {w.dtype} {list(w.shape)}"
                if not torch.allclose(g, w, rtol=1e-5, atol=1e-5, equal_nan=True):
                    return f"{key} {i}: {g.flatten()[:6].tolist()}, not {w.flatten()[:6].tolist()}"
        elif got != want:
            return f"{key}: {got}, not {want}"
    return ""
