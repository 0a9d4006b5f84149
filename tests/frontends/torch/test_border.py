"""The call border: what a call leaves behind is what eager leaves behind, in values and memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from border_programs import WRITES, Program, arguments, copied, difference, draw, world

import stack
from stack.errors import StackError

ENTRIES = ("stack", "torch")
Entry = Callable[..., Any]


def entry(name: str, fn: Any, example: Any, dynamic: bool) -> Any:
    """A callable under our compiler by either way in."""
    torch._dynamo.reset()
    if name == "stack":
        return stack.compile(fn, *example, dynamic=dynamic)
    return torch.compile(fn, backend="stack", dynamic=dynamic)


class Buffered(torch.nn.Module):
    """State that a call reads, writes and gives away."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.register_buffer("h", torch.zeros(4, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = self.h.clone()
        self.h.add_(x)
        return old, self.w.T, self.h[1:]


def leaky(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(1)
    return x.T, x.flatten()[2:], x * 2


# A call gives memory of its arguments only where eager does.
PROGRAMS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "T": lambda x: (x.T, x + 1),
    "mT": lambda x: (x.mT, x.mH),
    "data": lambda x: (x.data, x.detach()),
    "in place on a view": lambda x: (x.T.add_(1), x * 2),
    "in place": leaky,
    "clone": lambda x: (x.clone(),),
    "clone and add": lambda x: (x.clone().add_(1), x),
    "sum of a scalar": lambda x: (x[0, 0].sum(),),
    "pad by 0": lambda x: (F.pad(x, (0, 0)),),
    "roll by n": lambda x: (x.roll(x.shape[0], 0),),
    "repeat by 1": lambda x: (x.repeat(1, 1),),
    "cat of one": lambda x: (torch.cat([x]),),
    "to copy": lambda x: (x.to(x.dtype, copy=True), x.to(x.dtype)),
    "whole": lambda x: (x[:].clone(), x[:]),
    "twice": lambda x: (x.sin(), x.sin(), x + 0),
    "half": lambda x: (x[x.shape[0] // 2 :],),
    "narrow": lambda x: (x.narrow(0, x.shape[0] - 2, 2),),
    "chunk": lambda x: tuple(torch.chunk(x, 2, 0)),
    "chunk of a sum": lambda x: tuple(torch.chunk(x + 1, 2, 1)),
    "tensor_split": lambda x: (torch.tensor_split(x, 3, 0)[2],),
    "unflatten": lambda x: (x.unflatten(0, (-1, 1)), torch.exp(x).unflatten(1, (-1, 1))),
    "last": lambda x: (x[x.shape[0] - 1], x[-1]),
    "tril": lambda x: (torch.tril(x, x.shape[0] - 6),),
    "contiguous": lambda x: (x.contiguous(), x + 1 if x.is_contiguous() else x - 1),
    "stride": lambda x: (x * x.stride(0),),
    "strided": lambda x: (x.as_strided((2, 2), (1, 2)) + 1, x[1:].as_strided((3, 2), (2, 1))),
    "strided part": lambda x: (x[:, 1:3].as_strided((2, 2), (2, 1), 1) + 0,),
    "written by strides": lambda x: (x.clone().as_strided((2, 2), (3, 1)).add_(1), x),
    "expand": lambda x: (x.sum().expand(3, 2), x[:, :1].expand(-1, 4)),
    "transposed result": lambda x: ((x * 2).t(), (x.t() * 2).relu()),
}
OF_ALL_LAYOUTS = ("T", "chunk of a sum", "in place", "strided", "unflatten")
LAYOUTS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "dense": lambda a, b: torch.randn(a, b),
    "transposed": lambda a, b: torch.randn(b, a).t(),
    "step": lambda a, b: torch.randn(a, 2 * b)[:, ::2],
    "offset": lambda a, b: torch.randn(a + 1, b + 2)[1:, 2:],
}


@pytest.mark.every(7)
@pytest.mark.parametrize(("program", "name", "dynamic"), product(PROGRAMS, ENTRIES, (False, True)))
def test_memory(program: str, name: str, dynamic: bool) -> None:
    fn = PROGRAMS[program]
    made = None
    for layout, sizes in (("dense", (4, 6)), ("transposed", (4, 6)), ("dense", (6, 8))):
        x = LAYOUTS[layout](*sizes)
        made = made or entry(name, fn, copied([x], False), dynamic)
        mine = world(made, copied([x], False), False)
        assert not difference(mine, world(fn, copied([x], False), False)), (layout, sizes)


@pytest.mark.each
@pytest.mark.parametrize(
    ("program", "layout", "name"),
    product(OF_ALL_LAYOUTS, LAYOUTS, ENTRIES),
)
def test_memory_of_all_layouts(program: str, layout: str, name: str) -> None:
    x = LAYOUTS[layout](4, 6)
    made = entry(name, PROGRAMS[program], copied([x], False), False)
    mine = world(made, copied([x], False), False)
    assert not difference(mine, world(PROGRAMS[program], copied([x], False), False))


@pytest.mark.each
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize(
    "program", ["T", "clone", "cat of one", "chunk of a sum", "strided", "expand", "twice", "half"]
)
def test_gradients(program: str, name: str) -> None:
    x = torch.randn(4, 6)
    made = entry(name, PROGRAMS[program], copied([x], True), False)
    mine = world(made, copied([x], True), True)
    assert not difference(mine, world(PROGRAMS[program], copied([x], True), True))


# A view by strides past what its operand is a view of: eager's gradient there is zero, unless the
# memory is written to: then such a view is derived anew from the whole.
PAST_A_VIEW: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "row": lambda x: (x[0].as_strided((3, 2), (3, 2)) * 2,),
    "chunk": lambda x: (x.chunk(2, 1)[1].as_strided((2, 2), (1, 1)) + 0, x.sin()),
    "part of a value": lambda x: (x.exp()[1:3].as_strided((5, 2), (1, 1)) * 3,),
    "expanded": lambda x: (x[1].expand(2, 6).as_strided((2, 3), (1, 2)),),
    "detached": lambda x: (x.detach()[1].as_strided((2, 2), (1, 1)), x * 2),
    "written": lambda x: (written_past_a_view(x * 3),),
    "written and detached": lambda x: (written_past_a_view(x * 3, torch.Tensor.detach),),
}


def written_past_a_view(
    x: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.t
) -> torch.Tensor:
    y = of(x)[1].as_strided((3, 2), (2, 1))
    x[0].mul_(2)
    return y + x.sum()


@pytest.mark.each
@pytest.mark.parametrize(
    ("program", "name", "dynamic"), product(PAST_A_VIEW, ENTRIES, (False, True))
)
def test_gradients_of_strides_past_a_view(program: str, name: str, dynamic: bool) -> None:
    x = torch.randn(4, 6)
    made = entry(name, PAST_A_VIEW[program], copied([x], True), dynamic)
    mine = world(made, copied([x], True), True)
    assert not difference(mine, world(PAST_A_VIEW[program], copied([x], True), True))


# Arguments that overlap: a view by strides of one has its gradient there, not in the other.
OF_OVERLAPPING: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "whole": lambda whole, part: (part + 0, whole.as_strided((2, 2), (1, 1))),
    "part": lambda whole, part: (whole + 0, part.as_strided((2, 2), (1, 1))),
    "row of the whole": lambda whole, part: (part * 2, whole[1].as_strided((2, 1), (1, 1)) * 3),
    "row of the part": lambda whole, part: (whole * 2, part[0].as_strided((2, 1), (1, 1)) * 3),
}


@pytest.mark.each
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("program", OF_OVERLAPPING)
def test_gradients_of_strides_of_arguments_that_overlap(program: str, name: str) -> None:
    fn, whole = OF_OVERLAPPING[program], torch.randn(5, 2)
    made = entry(name, fn, copied([whole, whole[2:]], True), False)
    mine = world(made, copied([whole, whole[2:]], True), True)
    assert not difference(mine, world(fn, copied([whole, whole[2:]], True), True))


# Parts of a value that nobody sees the rest of, stretched along an axis: one element is many.
STRETCHED: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "new axis": lambda x: (x.flip(0)[:1].expand(3, *x[:1].shape),),
    "chunk": lambda x: (x.exp().chunk(4, 1)[0].unsqueeze(0).expand(2, -1, -1),),
    "last axis": lambda x: (x.sin()[:, :1].expand(-1, 4),),
    "permuted": lambda x: (x.cos()[1:2].expand(3, -1).t(),),
}


@pytest.mark.each
@pytest.mark.parametrize(("program", "name", "dynamic"), product(STRETCHED, ENTRIES, (False, True)))
def test_stretched_parts(program: str, name: str, dynamic: bool) -> None:
    made = None
    for sizes in ((8, 6), (9, 8)):
        x = torch.randn(sizes)
        made = made or entry(name, STRETCHED[program], copied([x], False), dynamic)
        mine = world(made, copied([x], False), False)
        assert not difference(mine, world(STRETCHED[program], copied([x], False), False))


def written_row(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x[0].fill_(1)
    return x[:, 1:], x.narrow(0, 1, 2)


def written_chunk(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    part = x.chunk(2, 0)[-1]
    part[0].fill_(1)
    return part, x + 1, x


def written_and_unflattened(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(2)
    return x.unflatten(0, (-1, 1))[1:], x.view_as(x), x


def written_and_kept(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = x * 3
    x.copy_(made)
    return made[1:], x[1:], made


def written_and_strided(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x[0].fill_(1)
    return x.as_strided((2, 2), (2, 1), 3), torch.cat([x])


# Views of an input that was written to share its storage.
WRITTEN: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "row": written_row,
    "chunk": written_chunk,
    "unflattened": written_and_unflattened,
    "kept": written_and_kept,
    "strided": written_and_strided,
}


def test_no_two_elements_are_stored_in_one_place() -> None:
    """Elements that lie on each other are stored in an order: the last one stays."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((2, 2), (1, 1))[1].sin_()
        return x

    x = torch.randn(2, 2)
    compiled = stack.compile(fn, x)
    (scatter,) = [n for n in compiled.run["imported"].func.body.nodes if n.op == "scatter"]
    assert scatter.args[1].shape == (3,)
    mine, eager = x.clone(), x.clone()
    torch.testing.assert_close(compiled(mine), fn(eager))


@pytest.mark.each
@pytest.mark.parametrize(("program", "name", "dynamic"), product(WRITTEN, ENTRIES, (False, True)))
def test_views_of_a_written_input(program: str, name: str, dynamic: bool) -> None:
    fn = WRITTEN[program]
    for layout in ("offset", "transposed", "step"):
        x = LAYOUTS[layout](4, 6)
        call = entry(name, fn, copied([x], False), dynamic)
        for given in (x, LAYOUTS[layout](5, 7)):
            mine, eager = copied([given], False), copied([given], False)
            assert not difference(world(call, mine, False), world(fn, eager, False)), layout


# Views by strides of memory that is no part of the argument, after a write to the argument.
PAST_AN_ARGUMENT: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "before it": lambda x: (x.as_strided((2, 2), (1, 1), 0).sum(),),
    "after it": lambda x: (x[1:].as_strided((2, 2), (4, 1), 28).cos(), x),
    "of a view": lambda x: (x.narrow(0, 0, 2)[1:].as_strided((2, 2), (1, 1), 2), x),
    "its own offset": lambda x: (x.narrow(0, 0, 2).as_strided((2, 2), (1, 1)), x.sum()),
}
OF_MORE_MEMORY: dict[str, Callable[[], torch.Tensor]] = {
    "columns": lambda: torch.randn(9, 8)[:4, :6],
    "offset": lambda: torch.randn(9, 8)[1:5, 2:],
    "rows": lambda: torch.randn(9, 6)[1:5],
    "first rows": lambda: torch.randn(9, 6)[:4],
    "step": lambda: torch.randn(5, 12)[:4, ::2],
}


@pytest.mark.each
@pytest.mark.parametrize(
    ("write", "program", "name", "dynamic"),
    product(["assign", "row", "strided"], PAST_AN_ARGUMENT, ENTRIES, (False, True)),
)
def test_strides_past_a_written_argument(
    write: str, program: str, name: str, dynamic: bool
) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if write == "strided":
            x.as_strided((2,), (8,), 12).mul_(2)  # elements of all these arguments
        else:
            WRITES[write][1](x, x, 3)
        return PAST_AN_ARGUMENT[program](x)

    for layout, make in OF_MORE_MEMORY.items():
        x = make()
        call = entry(name, fn, copied([x], False), dynamic)
        mine, eager = copied([x], False), copied([x], False)
        assert not difference(world(call, mine, False), world(fn, eager, False)), layout


@pytest.mark.each
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("program", ["row", "unflattened", "kept"])
def test_gradients_through_a_written_input(program: str, name: str, dynamic: bool) -> None:
    fn = WRITTEN[program]

    def gradient(run: Entry, leaf: torch.Tensor) -> torch.Tensor:
        x = (leaf * 3)[1:, 2:]
        total = sum(r.cos().sum() for r in run(x)) + x.square().sum()
        (found,) = torch.autograd.grad(total, leaf)
        return found

    for sizes in ((5, 8), (6, 9)):
        leaf = torch.randn(sizes, requires_grad=True)
        call = entry(name, fn, [(leaf * 3)[1:, 2:]], dynamic)
        torch.testing.assert_close(gradient(call, leaf), gradient(fn, leaf))


@pytest.mark.parametrize("name", ENTRIES)
def test_views_of_inputs_that_overlap(name: str) -> None:
    def fn(x: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        return part.unsqueeze(0), x.narrow(0, 0, 2)[:1], part

    for dynamic in (False, True):
        x = torch.randn(5, 4)
        call = entry(name, fn, copied([x, x[2:]], False), dynamic)
        for case in ([x, x[2:]], [x, x[1:4]], [torch.randn(5, 4), x[2:]]):
            mine, eager = copied(case, False), copied(case, False)
            assert not difference(world(call, mine, False), world(fn, eager, False))


# What a number means does not depend on the numbers that came before.
OF_NUMBERS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "pad": lambda x, n: (F.pad(x, (0, n)), F.pad(x, (abs(n), 0)).t()),
    "pad of a view": lambda x, n: (F.pad(x.diagonal(), (n, 1)), F.pad(x[1:], (0, n % 2))),
    "max": lambda x, n: (x + max(n, 0), x * min(n, 1)),
    "parts": lambda x, n: (x * (n // 2), x + n % 3, x.clamp(max=n)),
}


@pytest.mark.each
@pytest.mark.parametrize(("program", "name", "grad"), product(OF_NUMBERS, ENTRIES, (False, True)))
def test_numbers_of_any_sign(program: str, name: str, grad: bool) -> None:
    fn = OF_NUMBERS[program]
    call = entry(name, fn, [*copied([torch.randn(4, 6).t()], grad), 3], True)
    for n in (3, 0, -2, 1, 2):
        x = torch.randn(4, 6).t()

        def given(run: Entry, n: int = n) -> Entry:
            return lambda t: run(t, n)

        mine, eager = copied([x], grad), copied([x], grad)
        assert not difference(world(given(call), mine, grad), world(given(fn), eager, grad)), n


@pytest.mark.parametrize("name", ENTRIES)
def test_state_that_is_given_away(name: str) -> None:
    mine, eager = Buffered(), Buffered()
    call = entry(name, mine, [torch.ones(4, 6)], False)
    kept = []
    for _ in range(3):
        got, want = call(torch.ones(4, 6)), eager(torch.ones(4, 6))
        kept.append((got[0], want[0].clone()))
        torch.testing.assert_close(list(got), list(want))
        assert got[1].data_ptr() == mine.w.data_ptr()
        assert got[1].requires_grad
        assert got[2].untyped_storage().data_ptr() == mine.h.untyped_storage().data_ptr()
    for got, want in kept:
        torch.testing.assert_close(got, want)


@pytest.mark.each
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ENTRIES)
def test_the_same_tensor_twice_and_tensors_that_overlap(name: str, dynamic: bool) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.add_(1)
        return a * b, b

    base = torch.arange(12.0)
    cases = [[base[:4], base[6:10]], [base[:4]] * 2, [base[:4], base[2:6]], [base[2:6], base[:4]]]
    cases += [[base[:4], base[1:5]], [base[3:7], base[4:8]]]
    call = entry(name, fn, copied(cases[0], False), dynamic)
    for case in (*cases, *cases[::-1]):
        mine, eager = copied(case, False), copied(case, False)
        assert not difference(world(call, mine, False), world(fn, eager, False))


@pytest.mark.parametrize("name", ENTRIES)
def test_gradients_are_asked_for_later(name: str) -> None:
    w = torch.ones(3, requires_grad=True)
    call = entry(name, lambda t: (t * w).sum(), [torch.ones(3)], False)
    with torch.no_grad():
        assert not call(torch.ones(3)).requires_grad
    y = call(torch.full((3,), 2.0))
    assert y.requires_grad
    y.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2, 2, 2]
    x = torch.ones(3, requires_grad=True)
    call(x).backward()
    assert x.grad is not None


@pytest.mark.parametrize("name", ENTRIES)
def test_effects_in_python_happen_at_each_call(name: str) -> None:
    seen: list[int] = []
    counts = [0]

    def fn(t: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        seen.append(counts[0])
        return t * counts[0]

    call = entry(name, fn, [torch.ones(1)], False)
    assert counts == [0]
    assert [call(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]
    assert (counts, seen) == ([3], [1, 2, 3])


def test_preparing_runs_nothing() -> None:
    module = torch.nn.BatchNorm1d(3)
    compiled = stack.compile(module, torch.randn(4, 3))
    assert module.num_batches_tracked == 0
    assert compiled.run.coverage["ops"] > 0
    compiled(torch.randn(4, 3))
    assert module.num_batches_tracked == 1


def test_the_forward_pass_is_the_program_as_it_stands() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    compiled = stack.compile(module, x)
    assert len(compiled.func.results) == 1
    with torch.no_grad():
        assert str(stack.compile(module, x).run["fused"].text) == compiled.run["fused"].text
    compiled(x).square().sum().backward()
    mine = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    module(x).square().sum().backward()
    torch.testing.assert_close(mine, [p.grad for p in module.parameters()])
    assert [g.target for g in compiled.gradients] == ["backward"]
    assert len(compiled.graphs) == 1


def test_many_shapes_and_many_closures() -> None:
    compiled = stack.compile(lambda x: x * 2, torch.ones(1))
    for size in range(1, 14):
        assert compiled(torch.ones(size)).tolist() == [2.0] * size
    made = [stack.compile((lambda n: lambda x: x * n)(float(i)), torch.ones(2)) for i in range(12)]
    assert [c(torch.ones(2))[0].item() for c in made] == list(range(12))


def test_a_program_without_work_on_tensors() -> None:
    with pytest.raises(StackError, match="nothing to compile"):
        stack.compile(lambda x: 3, torch.ones(2))


# ---- random programs


class Verdict(NamedTuple):
    """The outcome of a program: "right", "wrong", "torch's own" or "empty", and why."""

    kind: str
    why: str = ""


def judged(seed: int, name: str, device: str = "cpu") -> Verdict:
    """Hold a random program against eager, over three calls.

    If it is wrong in the same way with no compiler behind torch's tracing, that is the
    fault of the tracing.
    """
    rng = random.Random(seed)
    sizes = rng.randint(2, 5), rng.randint(2, 5)
    args = arguments(random.Random(seed), sizes)
    other = arguments(random.Random(seed), (sizes[0] + 1, sizes[1] + 2))
    dynamic, grad = bool(seed & 1), bool(seed & 2)
    program = draw(rng, copied(args, False), not grad)
    if not program.steps:
        return Verdict("empty")

    def trouble(make: Callable[[], Entry]) -> tuple[str, str]:
        return _trouble(make, program, lambda given: copied(given, grad, device), calls, grad)

    def traced() -> Entry:
        torch._dynamo.reset()
        return torch.compile(program, backend="aot_eager", dynamic=dynamic)

    calls = [args, args, other]
    how, why = trouble(lambda: entry(name, program, copied(args, grad, device), dynamic))
    if not how:
        return Verdict("right")
    kind = "torch's own" if how == trouble(traced)[0] else "wrong"
    return Verdict(kind, f"seed {seed}, {name}, {why}\n{program.text}")


def _trouble(
    make: Callable[[], Entry], program: Program, fresh: Any, calls: Any, grad: bool
) -> tuple[str, str]:
    """The failure of calls, "raises" or "differs", and its description; "" if they agree."""
    call = None
    for number, given in enumerate(calls):
        try:
            eager = world(program, fresh(given), grad)
        except (RuntimeError, IndexError):
            continue
        try:
            call = call or make()
            mine = world(call, fresh(given), grad)
        except Exception as error:
            return "raises", f"call {number}: {type(error).__name__}: {error}"
        why = difference(mine, eager)
        if why:
            return "differs", f"call {number}: {why}"
    return "", ""


def assert_right(verdicts: Sequence[Verdict]) -> None:
    """None is wrong; hardly any says nothing about us."""
    counts = Counter(v.kind for v in verdicts)
    print(dict(counts), *(v.why for v in verdicts if v.why), sep="\n")
    assert not [v.why for v in verdicts if v.kind == "wrong"]
    assert counts["torch's own"] <= 1 + len(verdicts) // 50


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.every(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", range(4))
def test_random_programs(chunk: int, device: str) -> None:
    seeds = range(3 * chunk, 3 * chunk + 3)  # the sweep below begins with these too
    assert_right([judged(s, ENTRIES[s % 2], device) for s in seeds])


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", range(110))
def test_many_random_programs(chunk: int, device: str) -> None:
    seeds = range(50 * chunk, 50 * chunk + 50)
    assert_right([judged(s, ENTRIES[s // 4 % 2], device) for s in seeds])


WIDTHS: dict[str, Callable[[torch.Tensor], Any]] = {
    "wider": lambda x: x.view(torch.float64),
    "bytes": lambda x: x.view(torch.uint8),
    "part": lambda x: x[1:].view(-1).view(torch.int16)[3:],
    "complex": lambda x: x.view(torch.complex64),
    "same width": lambda x: x[1:].view(torch.int32),
}


@pytest.mark.each
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("program", WIDTHS)
def test_memory_of_an_input_as_numbers_of_another_width(program: str, name: str) -> None:
    fn = WIDTHS[program]
    x = torch.randn(4, 6)
    made, eager = entry(name, fn, [x], False)(x), fn(x)
    assert (made.shape, made.stride(), made.dtype) == (eager.shape, eager.stride(), eager.dtype)
    assert made.data_ptr() == eager.data_ptr()
