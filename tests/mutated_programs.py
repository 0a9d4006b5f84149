"""Random training programs with state that is read, written in place, and read again.

A program is a module's `forward` as Python text: buffers, parameters and arguments are read, as
they are, as views and as copies, written by in-place ops, and read again, so that a gradient needs
values of before a write. Three steps of it are run and give every output, gradient and state.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import allow_mutation_on_saved_tensors

from stack.errors import StackError

ROWS, COLUMNS, STEPS = 4, 3, 3
BUFFERS = ("self.a", "self.b")
PARAMETERS = ("self.w", "self.v")
HEADER = "def forward(self, x, y):\n"
BODY = "    "

# how state is read: {s} is its name
ALIASES = (
    "{s}",
    "{s}.view(4, 3)",
    "{s}.t().t()",
    "{s}[:, :]",
    "{s}.detach()",
    "{s}.reshape(-1).view(4, 3)",
)
PARTS = (
    "{s}[1:2]",
    "{s}[:, 2:]",
    "{s}[0]",
    "{s}.t()[1].unsqueeze(1)",
    "{s}[::4]",
    "{s}.narrow(0, 2, 1)",
)
COPIES = (
    "{s}.clone()",
    "{s}.detach().clone()",
    "{s} * 1.0",
    "{s}.t().contiguous().t()",
    "{s}.flip(0)",
)

# how it is written: {s} is state or an alias of it, {t} a value without a gradient
WRITES = (
    "{s}.mul_(0.9).add_({t}, alpha=0.1)",
    "{s}.add_({t} * 0.25)",
    "{s}.copy_({t})",
    "{s}.lerp_({t}.expand(4, 3), 0.25)",
    "{s}[1] = {t}.expand(4, 3)[2]",
    "{s}[:, 0].mul_(0.5)",
    "{s}[1:3].copy_({t}.expand(4, 3)[:2])",
    "{s}[torch.tensor([0, 3])] = {t}.expand(4, 3)[1:3]",
    "{s}.clamp_(-1.5, 1.5)",
    "{s}.t()[2].add_(0.125)",
    "{s}.div_({s}.norm() + 1.0)",
    "{s}.neg_()",
    "{s}.copy_({s}.roll(1, 0))",
    "{s} += 0.5",
    "{s}.index_add_(0, torch.tensor([2, 2]), {t}.expand(4, 3)[:2])",
    "torch.add({s}, {t}, out={s})",
    "torch.where({t}.expand(4, 3) > 0, {s}, -{s}, out={s})",
)
DATA_WRITES = ("{s}.data.mul_(0.75)", "{s}.data[2] = 0.25")

# what is computed of two values
OPS = (
    "{p} * {q}",
    "{p} + {q}",
    "{p} - {q}",
    "{p} * {q}.tanh()",
    "{p}.sigmoid() * {q}",
    "{p} / ({q} * {q} + 1.0)",
    "torch.where({q} > 0, {p}, {p} * {q})",
    "({p}.expand(4, 3) @ {q}.expand(4, 3).t()) @ {p}.expand(4, 3)",
    "torch.softmax({p} + {q}, -1)",
    "torch.maximum({p}, {q})",
    "({p} * {q}).sum(-1, keepdim=True) + {q}",
    "({p}.expand(4, 3) - {q}).square()",
    "torch.addcmul({p}, {q}, {p})",
)


@dataclass
class Program:
    """A program and the numbers that its runs start from.

    Attributes:
        shares: which memory the second argument has in every step but the first: its own, that of a
            buffer, or of a view of one.
    """

    seed: int
    text: str
    forward: Callable[..., Any]
    shares: str

    def module(self) -> nn.Module:
        """A module with fresh state."""
        generator = torch.Generator().manual_seed(self.seed)
        made = _Holder()
        for name in (*BUFFERS, *PARAMETERS):
            value = torch.randn(ROWS, COLUMNS, generator=generator)
            word = name.removeprefix("self.")
            if name in BUFFERS:
                made.register_buffer(word, value)
            else:
                made.register_parameter(word, nn.Parameter(value))
        made.program = self.forward
        return made

    def inputs(self, module: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The arguments of each step."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        for step in range(STEPS):
            x, y = (torch.randn(ROWS, COLUMNS, generator=generator) for _ in range(2))
            if step and self.shares:
                y = module.a if self.shares == "buffer" else module.a[:]
            yield x.requires_grad_(), y


class _Holder(nn.Module):
    program: Callable[..., Any]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.program(self, x, y)


@dataclass
class Trace:
    """The values of three training steps.

    Attributes:
        values: names and values, in order.
        error: what was raised; empty if nothing was.
        is_refused: whether Dynamo refused to make one graph, and we say so.
    """

    values: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    error: str = ""
    is_refused: bool = False

    def compare(self, other: Trace) -> str:
        """The differences of another trace; empty if there are none.

        Values are compared up to the first that overflows: whether a sum of large terms is inf or
        nan depends on their order, and on whether a product is rounded before it is added.
        """
        for (name, want), (_, have) in zip(self.values, other.values, strict=False):
            if want.shape != have.shape or want.dtype != have.dtype:
                return f"{name} is {have.dtype}{tuple(have.shape)}"
            if not torch.isfinite(want).all():
                return ""
            if not torch.allclose(want, have, rtol=2e-4, atol=2e-4):
                return f"{name} is {have.flatten()[:4].tolist()}, not {want.flatten()[:4].tolist()}"
        if len(self.values) != len(other.values):
            return f"{len(other.values)} values, not {len(self.values)}"
        return ""


Compile = Callable[[nn.Module, tuple[torch.Tensor, torch.Tensor]], Any]


def run(program: Program, compiled: Compile | None = None, saved: bool = False) -> Trace:
    """Three training steps.

    Args:
        compiled: what gives the callable for a module and example arguments. Default: eager.
        saved: whether eager saves copies of what is written to while autograd needs it.
    """
    module, trace = program.module(), Trace()
    state = {n: t.clone() for n, t in module.state_dict().items()}
    try:
        with allow_mutation_on_saved_tensors() if saved else nullcontext():
            example = next(program.inputs(module))
            call = module if compiled is None else compiled(module, example)
            for name, value in module.state_dict().items():
                assert torch.equal(value, state[name]), f"compiling wrote to {name}"
            for step, (x, y) in enumerate(program.inputs(module)):
                _step(module, call, x, y, step, trace)
    except Exception as error:
        trace.error = f"{type(error).__name__}: {error}"
        trace.is_refused = _is_refused(error)
    return trace


def _is_refused(error: Exception) -> bool:
    """True if the function as a whole is nothing that Dynamo traces, and the message says where."""
    is_dynamos = isinstance(error.__cause__, torch._dynamo.exc.Unsupported)
    is_clear = "does not make one graph, at <mutated program " in str(error)
    return isinstance(error, StackError) and is_dynamos and is_clear


def _step(module: nn.Module, call: Any, x: Any, y: Any, step: int, trace: Trace) -> None:
    module.zero_grad()
    outputs = call(x, y)
    for i, output in enumerate(outputs):
        trace.values.append((f"output {i} of step {step}", output.detach().clone()))
    outputs[0].square().mean().backward()
    trace.values.append((f"x.grad of step {step}", _or_zeros(x.grad, x)))
    trace.values.append((f"y of step {step}", y.detach().clone()))
    for name, p in module.named_parameters():
        trace.values.append((f"{name}.grad of step {step}", _or_zeros(p.grad, p)))
        with torch.no_grad():
            p.sub_(_or_zeros(p.grad, p).clamp(-1, 1), alpha=0.125)
    for name, value in module.state_dict().items():
        trace.values.append((f"{name} after step {step}", value.clone()))


def _or_zeros(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if gradient is None else gradient.detach().clone()


class _Writer:
    """Writes a program, line by line."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.values = ["x", "self.w", "x * self.v"]  # that may have gradients
        self.aliases: list[tuple[str, str]] = []  # of state, without gradients, of its whole shape
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def pick(self, choices: Any) -> Any:
        return self.random.choice(list(choices))

    def state(self) -> str:
        return self.pick((*BUFFERS, *BUFFERS, "y", self.pick(PARAMETERS)))

    def read(self) -> None:
        name, state = self.name(), self.state()
        forms = self.pick((ALIASES, PARTS, COPIES))
        self.lines.append(f"{name} = {self.pick(forms).format(s=state)}")
        self.values.append(name)
        if forms is ALIASES and (state not in PARAMETERS or ".detach" in self.lines[-1]):
            self.aliases.append((name, state))

    def write(self) -> None:
        target, root = self.pick((*((s, s) for s in (*BUFFERS, *BUFFERS, "y")), *self.aliases))
        if self.random.random() < 0.1:
            target = root = self.pick(PARAMETERS)
        value = self.pick(self.values)
        source = f"(({value}).detach() * 0.5)"
        forms = DATA_WRITES if self.random.random() < 0.1 else WRITES
        line = self.pick(forms).format(s=target, t=source)
        if line.startswith("self.") and " += " in line:
            line = line.replace(" += 0.5", ".add_(0.5)")
        if root in PARAMETERS or "out=" in line or self.random.random() < 0.7:
            line = f"with torch.no_grad(): {line}"
        self.lines.append(line)

    def rebind(self) -> None:
        state = self.pick(BUFFERS)
        value = f"({self.pick(self.values)}).detach().expand(4, 3)"
        self.lines.append(
            self.pick((f"{state} = {value} * 0.5", f"{state} = {state} * 0.9 + 0.1 * {value}"))
        )

    def compute(self) -> None:
        name = self.name()
        p, q = (self.pick((*self.values[-3:], *self.values, *BUFFERS, "y")) for _ in range(2))
        self.lines.append(f"{name} = {self.pick(OPS).format(p=f'({p})', q=f'({q})')}")
        self.values.append(name)

    def write_value(self) -> None:
        name = self.name()
        p, q = self.pick(self.values), self.pick((*self.values, *BUFFERS))
        self.lines.append(f"{name} = ({p}) + 0.5 * ({q})")
        self.lines.append(
            self.pick(
                (f"{name}.mul_({q})", f"{name}.add_({p})", f"{name}.tanh_()", f"{name}[0] = 1.0")
            )
        )
        self.values.append(name)

    def text(self) -> str:
        often = (self.read, self.write, self.compute)
        ways = (*often, *often, self.write, self.write_value, self.rebind)
        for _ in range(self.random.randint(4, 10)):
            self.pick(ways)()
        while not any(line.startswith("t") for line in self.lines):
            self.compute()
        used = [v for v in self.values if v.startswith("t")]
        chosen = self.random.sample(used, min(len(used), 3))
        total = " + ".join(["x * self.w * self.a", *(f"({v}).tanh()" for v in chosen)])
        self.lines.append(f"out = {total}")
        more = self.pick(("", "", "self.a, ", "y, ", "self.b.clone(), ", "self.a[1:3], "))
        if self.random.random() < 0.3:
            self.write()
        self.lines.append(f"return out, {more}")
        return HEADER + "".join(f"{BODY}{line}\n" for line in self.lines)


def random_program(seed: int, shared: bool = False) -> Program:
    """The program of a seed.

    Args:
        shared: whether the second argument may have the memory of a buffer.
    """
    writer = _Writer(seed)
    text, file = writer.text(), f"<mutated program {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"torch": torch, "__name__": __name__}
    exec(compile(text, file, "exec"), scope)
    shares = writer.pick(("", "buffer", "view")) if shared else ""
    return Program(seed, text, scope["forward"], shares)


class Verdict(NamedTuple):
    """The outcome of a program: "right", "wrong", "torch's own" or "refused by Dynamo"."""

    kind: str
    why: str = ""


def traced(module: nn.Module, _: Any) -> Any:
    """A module under AOTAutograd alone."""
    torch._dynamo.reset()
    return torch.compile(module, backend="aot_eager")


def judged(program: Program, compiled: Compile) -> Verdict:
    """Hold a compiled program against eager.

    Where autograd refuses to go on, the compiled program may refuse too, or give what is right.
    What AOTAutograd with eager kernels gets wrong as well is "torch's own".
    """
    eager = run(program)
    found = run(program, compiled)
    if found.is_refused:
        return Verdict("refused by Dynamo", found.error)
    if not eager.error:
        why = found.error or eager.compare(found)
        if why and not found.error and eager.compare(run(program, traced)):
            return Verdict("torch's own", why)
    else:
        right = run(program, saved=True)
        why = "" if found.error or right.error else right.compare(found)
    return Verdict("wrong" if why else "right", why)


def check(program: Program, compiled: Compile) -> str:
    """The differences of a compiled program; empty if there are none."""
    verdict = judged(program, compiled)
    return verdict.why if verdict.kind == "wrong" else ""
