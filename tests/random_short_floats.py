"""Random torch programs of 16-bit floats, f32 and bytes, at any size up to 70.

A program is a list of steps, each of which reads values before it. It can be run on other types:
with `wide`, every float is f64. What the roundings of eager leave says how far a compiled program
may be off, for results and for gradients.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import stack

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
EPS = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-23}
Cast = Callable[[Tensor, torch.dtype], Tensor]
Step = Callable[[list[Tensor], Cast], Tensor]


@dataclass(frozen=True)
class ShortFloats:
    """A program: its ops on floats and bytes, and the values that it returns."""

    inputs: list[Tensor]
    steps: list[Step]
    results: list[int]
    log: list[str]

    def __call__(self, *inputs: Tensor, wide: bool = False) -> list[Tensor]:
        def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
            return x.to(torch.float64 if wide and dtype.is_floating_point else dtype)

        values = list(inputs)
        for step in self.steps:
            values.append(step(values, cast))
        return [values[i] for i in self.results]

    def wide(self) -> list[Tensor]:
        """The inputs, floats in f64."""
        return [x.double() if x.is_floating_point() else x for x in self.inputs]


class _Grower:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        made = torch.Generator().manual_seed(seed)
        self.n = rng.randint(1, 70)
        rows = rng.choice((0, 0, 2, 3))
        shape = (rows, self.n) if rows else (self.n,)
        self.inputs = [
            (0.5 + torch.rand(shape, generator=made)).to(rng.choice(FLOATS)) for _ in range(2)
        ]
        self.inputs.append(torch.randint(-9, 9, shape, generator=made, dtype=torch.int8))
        self.types = [(x.dtype, x.shape) for x in self.inputs]
        self.steps: list[Step] = []
        self.log = [f"{x.dtype} {tuple(x.shape)}" for x in self.inputs]

    def pick(self, floats: bool = True, shape: Sequence[int] | None = None) -> int:
        found = [
            i
            for i, (t, s) in enumerate(self.types)
            if (t.is_floating_point or not floats) and (shape is None or s == shape)
        ]
        return self.rng.choice(found[-3:] if self.rng.random() < 0.6 else found)

    def add(self, what: str, step: Step, *reads: int) -> None:
        """Append a step, unless torch refuses it: it may need an axis, or a longer one."""
        values = [torch.ones(s, dtype=t) for t, s in self.types]
        try:
            made = step(values, lambda x, t: x.to(t))
        except (IndexError, RuntimeError):
            return
        if not 0 < made.numel() <= 1000:
            return
        self.types.append((made.dtype, made.shape))
        self.steps.append(step)
        self.log.append(f"{len(self.types) - 1} = {what}{[*reads]} : {made.dtype} {[*made.shape]}")

    def grow(self, count: int) -> None:
        moves = [self.movement, self.movement, self.smooth, self.pair, self.cast, self.reduction]
        for _ in range(count):
            self.rng.choice(moves)()

    def movement(self) -> None:
        i, rng = self.pick(), self.rng
        k, axis = rng.randint(1, 3), rng.choice((0, -1))
        j = self.pick(shape=self.types[i][1])
        name, move = rng.choice(MOVES)

        def step(v: list[Tensor], cast: Cast) -> Tensor:
            return move(v[i], cast(v[j], self.types[i][0]), k, axis)

        self.add(f"{name}(k={k}, axis={axis})", step, i, j)

    def smooth(self) -> None:
        i, (name, function) = self.pick(), self.rng.choice(SMOOTH)
        self.add(name, lambda v, _: function(v[i]), i)

    def pair(self) -> None:
        i, (name, function) = self.pick(), self.rng.choice(PAIRS)
        j = self.pick(floats=False, shape=self.types[i][1])
        self.add(name, lambda v, _: function(v[i], v[j]), i, j)

    def cast(self) -> None:
        i, to = self.pick(floats=False), self.rng.choice(FLOATS)
        self.add(f"to {to}", lambda v, cast: cast(v[i], to), i)

    def reduction(self) -> None:
        i, (name, function) = self.pick(), self.rng.choice(REDUCTIONS)
        axis = self.rng.choice((0, -1))
        self.add(f"{name}(axis={axis})", lambda v, _: function(v[i], axis), i)


Move = Callable[[Tensor, Tensor, int, int], Tensor]
MOVES: list[tuple[str, Move]] = [
    ("repeat_interleave", lambda x, _, k, a: x.repeat_interleave(k, a)),
    ("repeat", lambda x, _, k, a: torch.cat([x] * k, a)),
    ("stack", lambda x, y, k, a: torch.stack([x, y], a).flatten()),
    ("cat", lambda x, y, k, a: torch.cat([x, y, x], a)),
    ("flip", lambda x, _, k, a: x.flip(a)),
    ("roll", lambda x, _, k, a: x.roll(k, a)),
    ("pad", lambda x, _, k, a: torch.nn.functional.pad(x, (k, 1))),
    ("slice", lambda x, _, k, a: x[..., :: k + 1]),
    ("strided", lambda x, _, k, a: x[..., k - 1 :: 2] * 2),
    ("transpose", lambda x, _, k, a: x.mT.contiguous() if x.dim() > 1 else x.unsqueeze(-1)),
    ("where", lambda x, y, k, a: torch.where(torch.arange(x.shape[-1]) % (k + 1) == 0, x, y)),
]
SMOOTH: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("double", lambda x: x * 2),
    ("negate", lambda x: 1.5 - x),
    ("tanh", torch.tanh),
    ("sigmoid", torch.sigmoid),
    ("silu", torch.nn.functional.silu),
    ("gelu", torch.nn.functional.gelu),
    ("log1p", lambda x: torch.log1p(x * x)),
    ("softmax", lambda x: torch.softmax(x, -1)),
]
PAIRS: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("add", lambda x, y: x + y),
    ("mul", lambda x, y: x * y * 0.25),
    ("div", lambda x, y: x / (y * y + 1)),
]
REDUCTIONS: list[tuple[str, Callable[[Tensor, int], Tensor]]] = [
    ("mean", lambda x, a: x - x.mean(a, keepdim=True)),
    ("sum", lambda x, a: x.sum(a) / x.shape[a]),
    ("norm", lambda x, a: x / (x * x).sum(a, keepdim=True).add(1).sqrt()),
    ("cumsum", lambda x, a: x.cumsum(a) / x.shape[a]),
]


def short_floats(seed: int, count: int = 6) -> ShortFloats:
    """The program of a seed."""
    grower = _Grower(seed)
    while not grower.steps:
        grower.grow(count)
    floats = [i for i in range(3, len(grower.types)) if grower.types[i][0].is_floating_point]
    results = floats[-3:] or [0]
    return ShortFloats(grower.inputs, grower.steps, results, grower.log)


def wrong(seed: int, backward: bool) -> str:
    """The differences of a compiled program; "" if there are none."""
    program = short_floats(seed)
    leaves = [x for x in program.inputs if x.is_floating_point()]

    def outcome(call: Callable[..., list[Tensor]], inputs: list[Tensor]) -> list[Tensor]:
        own = [x.clone().requires_grad_(backward and x.is_floating_point()) for x in inputs]
        found = list(call(*own))
        if backward:
            total = sum((y.double() ** 2).sum() for y in found if y.requires_grad)
            if isinstance(total, Tensor):
                asked = [x for x in own if x.requires_grad]
                grads = torch.autograd.grad(total, asked, allow_unused=True)
                found += [torch.zeros_like(x) if g is None else g for x, g in zip(asked, grads)]
        return [y.detach() for y in found]

    exact = outcome(lambda *a: program(*a, wide=True), program.wide())
    eager = outcome(program, program.inputs)
    compiled: Any = stack.compile(program, *program.inputs)
    for want, other, got in zip(exact, eager, outcome(compiled, program.inputs), strict=True):
        if (got.shape, got.dtype) != (other.shape, other.dtype):
            return f"seed {seed}: {got.dtype}{[*got.shape]}, not {other.dtype}{[*other.shape]}"
        if not got.numel():
            continue
        apart, theirs = ((x.double() - want).abs().max().item() for x in (got, other))
        # eager may be right by accident: a few roundings of the shortest type are allowed
        short = max(EPS[x.dtype] for x in leaves + [t for t in eager if t.dtype in EPS])
        if not apart <= 3 * theirs + 4 * short * max(1.0, want.abs().max().item()):
            return f"seed {seed}: off by {apart:.3g}, eager by {theirs:.3g}\n" + "\n".join(
                program.log
            )
    return ""
