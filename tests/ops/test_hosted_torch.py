"""Every hosted operator as torch's: its own checks of operators, derivatives, compilers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosted_cases import CASES, FAMILIES, QUICK_FAMILY, SMALL, Case, of_family

torch = pytest.importorskip("torch")

import stack  # noqa: E402
from stack.errors import RuleError  # noqa: E402
from stack.hosted import find  # noqa: E402


@pytest.fixture(autouse=True)
def forgetful() -> None:
    """All cases are calls of one function, of which Dynamo compiles a few only."""
    torch._dynamo.reset()


def tensors(case: Case, dtype: str = "float64", grad: bool = False) -> list[Any]:
    made = [torch.from_numpy(a) for a in case.arrays(dtype)]
    for t in made:
        t.requires_grad_(grad and t.is_floating_point())
    return made


def program(case: Case) -> Any:
    """The operator between two others."""
    op, attributes = case.op, case.attributes

    def run(first: Any, *rest: Any) -> Any:
        twice = first * 2
        out = op(twice, *rest, **attributes)
        return tuple(o + 1 for o in out) if isinstance(out, tuple) else out + 1

    return run


# Those that end in products of ragged groups or in a scan: kernels that take nothing after them.
ALONE = {"moe.combine", "moe.grouped_gemm", "scan.inclusive"}


def results(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def total(out: Any) -> Any:
    return sum(o.sum() for o in results(out))


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """A sum of large terms may be small: what it is off by is measured against the largest one."""
    found = found if isinstance(found, tuple | list) else (found,)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    for a, b in zip(found, expected, strict=True):
        size = b.detach().double().abs()
        largest = float(size[size.isfinite()].amax()) if size.isfinite().any() else 0.0
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(1.0, largest))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_the_reference(case: Case) -> None:
    found = case.op(*tensors(case), **case.attributes)
    expected = results(case.op(*case.arrays(), **case.attributes))
    close(found, tuple(torch.from_numpy(np.asarray(e)) for e in expected), 1e-12)


@pytest.mark.every(3)
@pytest.mark.parametrize("case", SMALL)
def test_torch_finds_no_fault_in_the_operator(case: Case) -> None:
    case.op.on("torch")
    overload = getattr(torch.ops.stack, case.name.replace(".", "_")).default
    told = torch.library.opcheck(overload, tensors(case, grad=True), case.attributes)
    assert set(told.values()) == {"SUCCESS"}


def along_a_line(run: Any, held: list[Any]) -> Any:
    """A function of one number: all floats go a random way, results are weighed at random."""
    generator = torch.Generator().manual_seed(0)

    def drawn(t: Any) -> Any:
        return torch.randn(t.shape, generator=generator, dtype=t.dtype)

    ways = [drawn(t) if t.requires_grad else None for t in held]
    weights = [drawn(o) if o.is_floating_point() else None for o in results(run(*held))]

    def line(place: Any) -> Any:
        moved = (t if w is None else t.detach() + place * w for t, w in zip(held, ways))
        pairs = zip(results(run(*moved)), weights, strict=True)
        return sum((o * w).sum() for o, w in pairs if w is not None)

    return line


@pytest.mark.every(2)
@pytest.mark.parametrize("case", SMALL)
def test_derivatives(case: Case) -> None:
    if not case.has_derivative:
        pytest.skip("its results are integers")
    held = tensors(case, grad=True)
    run = lambda *ts: case.op(*ts, **case.attributes)
    if sum(t.numel() for t in held if t.requires_grad) < 100:
        torch.autograd.gradcheck(run, held)  # element by element
    place = torch.zeros((), dtype=torch.float64, requires_grad=True)
    line = along_a_line(run, held)
    torch.autograd.gradcheck(line, [place])
    torch.autograd.gradgradcheck(line, [place])


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=() if f == QUICK_FAMILY else pytest.mark.slow) for f in FAMILIES],
)
def test_inductor_keeps_one_graph(family: str) -> None:
    """All operators of a family in one program, which C++ is compiled for once."""
    cases = of_family(family)
    held, runs = [tensors(c, "float32") for c in cases], [program(c) for c in cases]

    def run(*operands: Any) -> Any:
        return [run(*ts) for run, ts in zip(runs, operands, strict=True)]

    found = torch.compile(run, fullgraph=True)(*held)
    for case, out, expected in zip(cases, found, run(*held), strict=True):
        assert len(results(out)) == case.op.results, case
        close(out, expected)


@pytest.mark.parametrize("case", SMALL)
def test_our_compiler_takes_it_whole(case: Case) -> None:
    """And fuses what comes after it into its last kernel."""
    held, run = tensors(case, "float32"), program(case)
    compiled = stack.compile(run, *held, strict=True, hosted="generated")
    close(compiled(*held), run(*held))
    coverage = compiled.run.coverage
    assert coverage["hosted"] == 1 and coverage["fallback"] == 0
    name, first = Path(__file__).name, run.__code__.co_firstlineno
    own, after = f"{name}:{first + 2}", f"{name}:{first + 3}"
    holding = [k for k in compiled.run.kernels if after in k.source]
    is_fused = all(own in k.source for k in holding)
    assert is_fused != (case.name in ALONE), [(k.name, k.ops) for k in holding]


@pytest.mark.every(2)
@pytest.mark.parametrize("case", SMALL)
def test_calls_and_gradients_through_our_backend(case: Case) -> None:
    held, run = tensors(case, "float32", grad=True), program(case)
    step = torch.compile(run, backend="stack", fullgraph=True)
    if not case.has_derivative:
        return close(step(*held), run(*held))
    floats = [t for t in held if t.requires_grad]
    expected = torch.autograd.grad(total(run(*held)), floats)
    close(torch.autograd.grad(total(step(*held)), floats), expected, 1e-4)


@pytest.mark.parametrize("case", SMALL)
def test_vmap(case: Case) -> None:
    """Along the leading axes, and of an operand that has none."""
    held = tensors(case)
    others = [t.flip(0) if t.ndim else t + 1 for t in held]
    axes = tuple(min(1, t.ndim) for t in held)
    stacked = [torch.stack(pair, axis) for *pair, axis in zip(held, others, axes)]
    run = lambda *ts: case.op(*ts, **case.attributes)
    expected = tuple(map(torch.stack, zip(results(run(*held)), results(run(*others)), strict=True)))
    close(torch.vmap(run, axes)(*stacked), expected, 1e-12)


def test_what_has_no_elements_is_new_too() -> None:
    """Torch asks it of an operator, where its decomposition gives the operand itself."""
    found = find("scan.segmented")(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.int32))
    assert found.shape == (2, 0)


def test_vmap_along_leading_axes_is_one_call() -> None:
    op = find("norm.rms_norm")
    x, w = torch.randn(3, 4, 8), torch.randn(8)
    with torch.profiler.profile() as seen:
        found = torch.vmap(lambda row: op(row, w), 1, 1)(x)
    calls = [e for e in seen.events() if e.name == "stack::norm_rms_norm"]
    close(found, op(x, w))
    assert len(calls) == 2  # the call under vmap, and the one that it becomes


def test_autocast() -> None:
    x, w = torch.randn(4, 8, dtype=torch.bfloat16), torch.randn(8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert find("norm.rms_norm")(x, w).dtype is torch.float32
        wide = find("loss.linear_cross_entropy")
        found = wide(x.float(), x.float(), torch.tensor([0, 1, 2, 3]))
    exact = wide(x, x, torch.tensor([0, 1, 2, 3]))
    assert found.dtype is torch.float32
    close(found, exact)


def test_sizes_that_do_not_fit_are_refused_before_anything_runs() -> None:
    op = find("norm.rms_norm")
    bad = torch.zeros(4, 8), torch.zeros(7)
    with pytest.raises(RuleError, match="'weight'"):
        op(*bad)
    with pytest.raises(Exception, match="'weight'"):
        torch.compile(lambda x, w: op(x, w), fullgraph=True)(*bad)
    with pytest.raises(Exception, match="'weight'"):
        stack.compile(lambda x, w: op(x, w), *bad)


def test_sizes_that_vary_are_compiled_once() -> None:
    op, w = find("norm.rms_norm"), torch.randn(16)
    run = lambda x, w: op(x * 2, w) + 1
    ours = stack.compile(run, torch.randn(8, 16), w, dynamic=True, strict=True)
    theirs = torch.compile(run, dynamic=True, fullgraph=True, backend="aot_eager")
    for rows in (8, 5):
        x = torch.randn(rows, 16)
        for compiled in (ours, theirs):
            close(compiled(x, w), run(x, w))


def test_a_decomposition_that_asks_for_numbers_is_called_where_sizes_vary() -> None:
    """Width to the power -1/2 is no size: torch runs the operator, and that is counted."""
    op, q = find("attention.attention"), torch.randn(2, 4, 6, 8)
    run = lambda q: op(q, q, q, causal=True)
    compiled = stack.compile(run, q, dynamic=True)
    close(compiled(q), run(q))
    assert compiled.run.coverage["fallback_ops"] == {"torch:stack.attention_attention.default": 1}
