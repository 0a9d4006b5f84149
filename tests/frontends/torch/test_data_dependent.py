"""Sizes and numbers that data decides: in parts, with eager's answer for whatever comes next."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import stack
from stack.errors import StackError, UnsupportedOp
from stack.frontends.torch.compile.dynamo_backend import GRAPHS

torch = pytest.importorskip("torch")
nn = torch.nn

X = torch.arange(12.0).reshape(3, 4) - 5
WHOLE = torch.arange(12).reshape(3, 4) - 5


def n(value: Any) -> Any:
    return torch.tensor(value)


def assigned(x: Any) -> Any:
    y = x * 1
    y[y > 0] += y[y > 0]
    return y.tanh()


def embedded(x: Any, w: Any, labels: Any) -> Any:
    """As the prompt encoder of segment-anything."""
    y = x * 2
    y[labels == -1] = 0.0
    y[labels == -1] += w
    y[labels == 0] += w * 2
    return y.sum(0)


def routed(x: Any, w: Any) -> Any:
    out, expert = torch.zeros_like(x), x.sum(-1) > 0
    for k in range(2):
        rows = torch.nonzero(expert == bool(k)).squeeze(-1)
        out.index_add_(0, rows, x[rows] @ w[k])
    return out.relu()


def into_argument(x: Any, mask: Any) -> Any:
    x[mask] += 1
    return x * 2


# program, calls, the ops that torch runs; none where all is compiled
W = torch.arange(32.0).reshape(2, 4, 4)
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], set[str]]] = {
    "factor": (lambda a: torch.ones(2) * a.item(), [(n(5),), (n(7),), (n(0),)], set()),
    "terms": (lambda x, a: a.item() + x - (a.item() * 2 + 1), [(X, n(5)), (X, n(-3))], set()),
    "narrow": (lambda x, a: x * a.item(), [(WHOLE.int(), n(5)), (WHOLE.int(), n(-3))], set()),
    "of truth": (lambda x, a: (x > 0) * a.item(), [(X, n(5).to(torch.uint8)), (X, n(200))], set()),
    "no axes": (lambda x, a: x.sum(dtype=x.dtype) * a.item(), [(WHOLE.int(), n(5))], set()),
    "quotient": (lambda x, a: x / a.item(), [(WHOLE, n(2)), (WHOLE, n(3))], set()),
    "shift": (lambda x, a: x << int(a), [(WHOLE, n(2)), (WHOLE, n(3))], set()),
    "compared": (lambda x, a: x > a.item(), [(X, n(2)), (X, n(-3))], set()),
    "float": (lambda x: x * (x.sum().item() * 2 + 1), [(X,), (X + 1,)], set()),
    "branch": (lambda x, a: x * 2 if a.item() > 3 else x, [(X, n(2)), (X, n(5)), (X, n(2))], set()),
    "range": (lambda x, a: sum(x * i for i in range(a.item())), [(X, n(2)), (X, n(3))], set()),
    "truncated": (lambda x: x * int(x.sum().item()), [(X,), (X + 1,)], {".item()", "mul"}),
    "truth": (
        lambda x, m: x * m.any().item(), [(X, n([True])), (X, n([False]))], {".item()", "mul"},
    ),
    "returned": (
        lambda x: (x * 2, x.max().item()), [(X,), (X + 1,)], {".item()", "scalar_tensor"},
    ),
    "listed": (
        lambda x, a: (x * a.tolist()[0], a.tolist()), [(X, n([2, 3])), (X, n([4, 5]))],
        {".item()", "getitem", "mul"},
    ),
    "power": (lambda x, a: x ** a.item(), [(X, n(2)), (X, n(3))], {".item()", "pow"}),
    "zeros": (lambda a: torch.zeros(int(a)), [(n(3),), (n(5),), (n(0),)], {".item()", "zeros"}),
    "cut": (
        lambda x, a: x[: a.item()].sum(0), [(X, n(2)), (X, n(0)), (X, n(-1))],
        {".item()", "getitem", ".sum()"},
    ),
    "row": (
        lambda x, a: x[a.item()] * 2, [(X, n(2)), (X, n(0)), (X, n(-1))],
        {".item()", "select", "mul"},
    ),
    "roll": (lambda x, a: x.roll(a.item(), 0), [(X, n(2)), (X, n(1))], {".item()", ".roll()"}),
    "shape": (
        lambda x, a: x.reshape(a.item(), -1).sum(0), [(X, n(2)), (X, n(3)), (X, n(6))],
        {".item()", ".reshape()", ".sum()"},
    ),
    "mask": (lambda x: x[x > 0] * 2, [(X,), (X + 1,), (X - 100,)], {"getitem", "mul"}),
    "filled": (lambda x: x.masked_fill(x > 0, 0), [(X,), (X + 1,)], set()),
    "nonzero": (lambda x: torch.nonzero(x * 2 > 0), [(X,), (X - 3,)], {"nonzero"}),
    "assigned": (assigned, [(X,), (X - 3,), (X - 100,)], {"getitem", "iadd", "setitem"}),
    "embedded": (
        embedded, [(X, X[0], n([-1, 0, 1])), (X, X[1], n([-1, -1, 0]))],
        {"getitem", "iadd", "setitem"},
    ),
    "routed": (
        routed, [(X, W), (X + 2, W)],
        {"nonzero", ".squeeze()", "getitem", "matmul", ".index_add_()"},
    ),
    "argument": (into_argument, [(X, X > 0), (X, X < 0)], {"getitem", "iadd", "setitem"}),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_agree_with_eager(name: str) -> None:
    program, calls, left = PROGRAMS[name]
    compiled = stack.compile(program, *copy.deepcopy(calls[0]))
    for args in calls:
        own, eager = copy.deepcopy(args), copy.deepcopy(args)
        found, wanted = compiled(*own), program(*eager)
        torch.testing.assert_close((found, own), (wanted, eager))
    coverage = compiled.run.coverage
    names = {op.removeprefix("torch:") for op in coverage["fallback_ops"]}
    if name not in ("branch", "range", "shape"):  # captured again, with numbers in place
        assert names == left
        assert coverage["fallback"] >= len(left)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["factor", "cut", "embedded", "listed"])
def test_through_torch(name: str) -> None:
    program, calls, _ = PROGRAMS[name]
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stack")
    for args in calls:
        torch.testing.assert_close(compiled(*copy.deepcopy(args)), program(*copy.deepcopy(args)))


def test_a_number_is_a_value_of_the_function() -> None:
    func = stack.trace(lambda x, a: x * (a.item() + 1), X, n(3))
    torch.testing.assert_close(torch.from_numpy(func.interpret(X.numpy(), n(4).numpy())), X * 5)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        hidden = self.a(x).relu()
        rows = hidden[x.sum(-1) > 0]
        return (self.b(hidden) + self.b(rows).sum(0)).tanh()


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Any) -> Any:
        weights = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            (rows,) = torch.where(weights.argmax(-1) == i)
            out[rows] += expert(x[rows]) * weights[rows, i, None]
        return out


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            count = (x > 0).sum().item()
            part = x[x > 0].sum()
        return self.a(x) * count + part + x[: count // 4].sum()


@pytest.mark.every(2)
@pytest.mark.parametrize("make", [Masked, Routed, Scaled])
def test_gradients_flow_through_the_parts(make: Any) -> None:
    torch.manual_seed(0)
    eager = make()
    module = copy.deepcopy(eager)
    compiled = stack.compile(module, X)
    for x in (X, -X, X * 0.1 + 1):
        given = [x.clone().requires_grad_() for _ in range(2)]
        found, wanted = compiled(given[0]), eager(given[1])
        torch.testing.assert_close(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
        pairs = zip([given[0], *module.parameters()], [given[1], *eager.parameters()], strict=True)
        for own, other in pairs:
            torch.testing.assert_close(own.grad, other.grad)


def test_autocast_and_gradients_hold_in_each_part() -> None:
    def program(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            y = x @ w
            return y[y > 0] @ torch.ones(int((y > 0).sum()), 2), y @ w

    w = torch.eye(4).requires_grad_()
    found, wanted = stack.compile(program, X, w)(X, w), program(X, w)
    torch.testing.assert_close(found, wanted)
    assert [f.requires_grad for f in found] == [False, False]


def test_sizes_that_vary_and_sizes_that_data_decides() -> None:
    compiled = stack.compile(lambda x: x[x > 0].sum() + x * 2, X, dynamic=True)
    for x in (X, torch.randn(7, 3)):
        torch.testing.assert_close(compiled(x), x[x > 0].sum() + x * 2)


class _Scaled(nn.Module):
    """Reads a number that Dynamo keeps symbolic: an attribute of the module."""

    def __init__(self, in_parts: bool) -> None:
        super().__init__()
        self.scale, self.in_parts = 0.5, in_parts

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):  # as in rotary embeddings of transformers
            y = x.relu() * self.scale
        return (y, x[x > 0].sum() * self.scale) if self.in_parts else y + 1


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_number_of_the_module_that_changes(in_parts: bool) -> None:
    torch._dynamo.reset()
    module = _Scaled(in_parts)
    call = torch.compile(module, backend="stack", dynamic=True, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for scale in (0.5, 0.75, 2.0):
            module.scale = scale
            torch.testing.assert_close(call(X), module(X))
    assert [type(g).__name__ for g in GRAPHS][-1] == ("Parts" if in_parts else "_OnTensors")


def test_what_was_assumed_of_data_is_checked() -> None:
    compiled = stack.compile(lambda x, z: x[x > 0] + z, n([1.0, 2, -1]), torch.ones(2))
    torch.testing.assert_close(compiled(n([3.0, -2, 1]), torch.ones(2)), n([4.0, 2]))
    with pytest.raises(StackError, match=r"u0 >= 2.*test_data_dependent.py:\d+.*torch.compile"):
        compiled(n([1.0, -2, -1]), torch.ones(2))


def test_the_record_is_of_all_parts() -> None:
    compiled = stack.compile(Masked(), X)
    run = compiled.run
    assert {"captured", "part0.imported", "part1.imported"} < {*run.stages}
    assert "getitem at test_data_dependent.py:" in run.notes["fallbacks"]
    assert run.coverage["native"] > 4 and len(run.kernels) > 1
    with pytest.raises(StackError, match="compiled in parts"):
        _ = compiled.func
    with pytest.raises(StackError, match="is not one compiled graph"):
        _ = compiled.graph


def test_nothing_runs_before_the_first_call() -> None:
    x = X.clone()
    compiled = stack.compile(into_argument, x, x > 0)
    torch.testing.assert_close(x, X)
    with pytest.raises(UnsupportedOp, match="getitem"):
        stack.compile(into_argument, x, x > 0, strict=True)
    assert compiled(x, x > 0).shape == X.shape


def chunked(x: Any) -> Any:
    padded = nn.functional.pad(x, (0, 0, 0, 0, 0, (8 - x.shape[1] % 8) % 8, 0, 0), "constant", 0)
    return padded.reshape(len(x), -1, 8, 3, 2).sum(2), x[x > 0].exp()


def test_a_part_pads_by_a_symbolic_size_without_gradients() -> None:
    with torch.no_grad():
        compiled = stack.compile(chunked, torch.randn(2, 17, 3, 2), dynamic=True)
        for size in (17, 9):
            x = torch.randn(2, size, 3, 2)
            torch.testing.assert_close(compiled(x), chunked(x))


def chunked_after(x: Any) -> Any:
    """The last part reads an array whose size is an expression of a size that it does not have."""
    y = nn.functional.pad(x, (0, 0, 0, 8 - x.shape[1] % 8))
    return y[y > 0].exp(), y.reshape(len(x), -1, 8, x.shape[2]).sum(2)


def test_a_part_cannot_solve_for_a_size_of_its_input() -> None:
    compiled = stack.compile(chunked_after, torch.randn(2, 20, 3), dynamic=True)
    for shape in ((2, 20, 3), (3, 17, 4), (3, 16, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), chunked_after(x))
    assert "does not determine the size symbols" in compiled.run.notes["fallbacks"]
    assert compiled.run.coverage["fallback_ops"]["torch:getitem"] == 1  # told once, as data's
    assert "part0.imported" in compiled.run.stages  # the first part is compiled


def test_a_part_solves_for_a_size_of_its_input() -> None:
    """The twin: the size is linear in its symbol."""

    def fn(x: Any) -> Any:
        y = nn.functional.pad(x, (0, 0, 0, 8))
        return y[y > 0].exp(), y.sum(1)

    compiled = stack.compile(fn, torch.randn(2, 20, 3), dynamic=True)
    for shape in ((2, 20, 3), (3, 17, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), fn(x))
    assert "does not determine" not in compiled.run.notes["fallbacks"]
