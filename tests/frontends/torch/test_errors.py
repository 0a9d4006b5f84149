"""Errors of torch programs, and programs whose sizes data decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stack
from stack.errors import StackError, UnsupportedOp
from stack.rewrite.pipeline import Pipeline
from stack.run.rejected_arguments import FAULT, OWN

torch = pytest.importorskip("torch")
X = torch.tensor([[1.0, -2.0, 4.0], [3.0, 0.0, -1.0]])
Program = Callable[[Any], Any]


def positive(x: Any) -> Any:
    return x[x > 0] * 2


def counted(x: Any) -> Any:
    return torch.arange(int(x.abs().max()))


def branching(x: Any) -> Any:
    if x.sum() > 0:
        return x * 2
    return x


def listed(x: Any) -> Any:
    return torch.tensor(x.tolist()) + 1


SIZED: list[tuple[Program, str]] = [
    (torch.nonzero, "nonzero"),
    (lambda x: torch.where(x > 0), "where"),
    (positive, "getitem"),
    (lambda x: torch.masked_select(x, x > 0).sum(), "masked_select"),
    (lambda x: torch.unique(x) + 1, "unique"),
    (lambda x: torch.bincount(x.abs().long().view(-1)), "bincount"),
    (lambda x: x.repeat_interleave(torch.tensor([1, 2]), 0), "repeat_interleave"),
    (lambda x: x * int(x.sum()), r"\.item\(\)"),
    (counted, r"\.item\(\)"),
]


@pytest.mark.parametrize(("program", "op"), SIZED)
def test_strict_names_the_op_and_its_line(program: Program, op: str) -> None:
    # torch's own function has no line of a user's, and none of ours stands for it
    place = r"test_errors\.py:\d+" if program is not torch.nonzero else "no source line"
    with pytest.raises(UnsupportedOp, match=rf"{op}.*  \({place}\)") as raised:
        stack.compile(program, X, strict=True)
    assert "<built-in" not in str(raised.value)
    assert "without strict" in str(raised.value)


@pytest.mark.parametrize(("program", "op"), [SIZED[2], SIZED[3], SIZED[-1]])
def test_no_one_function_is_of_sizes_that_data_decides(program: Program, op: str) -> None:
    with pytest.raises(UnsupportedOp, match=rf"{op}.*\(test_errors.py:\d+\)") as raised:
        stack.trace(program, X)
    assert "depends on data; torch.compile(fn, backend='stack')" in str(raised.value)


@pytest.mark.parametrize(("program", "_"), SIZED)
def test_torch_runs_what_data_decides(program: Program, _: str) -> None:
    compiled = stack.compile(program, X)
    assert compiled.run.coverage["fallback"] > 0
    for x in (X, -X, X * 2):
        torch.testing.assert_close(compiled(x), program(x))


def by_a_number(x: Any) -> Any:
    return x * 2 if int((x > 0).sum()) > 3 else x


def by_a_size(x: Any) -> Any:
    y = x[x > 0]
    return x if y.numel() == 0 else y


@pytest.mark.parametrize(("program", "rule"), [(by_a_number, "u0 > 3"), (by_a_size, "Eq.u0, 0.")])
def test_a_branch_that_data_decides_is_named(program: Program, rule: str) -> None:
    with pytest.raises(StackError, match=rf"test_errors.py:\d+: `.*\n.*{rule}.*torch.where"):
        stack.compile(program, X)


def through_torch(program: Program, x: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(program, backend="stack")(x)


@pytest.mark.parametrize(("program", "code"), [(branching, "if x.sum"), (listed, "x.tolist")])
def test_what_breaks_a_graph_is_shown(program: Program, code: str) -> None:
    with pytest.raises(StackError, match=rf"at test_errors.py:\d+: `.*{code}") as raised:
        stack.compile(program, X)
    assert "TORCHDYNAMO_VERBOSE" not in str(raised.value)


@pytest.mark.every(2)
@pytest.mark.parametrize("program", [p for p, _ in SIZED] + [branching, listed])
def test_through_torch_the_parts_run(program: Program) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stack")
    for x in (X, -X, X * 2):
        torch.testing.assert_close(compiled(x), program(x))


def moved(x: Any) -> Any:
    x.data = x * 2
    return x + 1


@pytest.mark.parametrize("compiles", [stack.compile, through_torch])
def test_other_memory_for_an_argument_is_refused(compiles: Any) -> None:
    with pytest.raises(Exception, match=r"`x\.data = `  \(test_errors\.py:\d+\)\n.*x\.copy_"):
        compiles(moved, X.clone())


def test_what_torch_compiles_in_no_parts_is_not_said_to_be() -> None:
    def program(x: Any) -> Any:
        if torch.compiler.is_compiling():
            return x + torch.ones(5, 7)
        return x * 2

    with pytest.raises(StackError, match=r"torch does not trace the function, at test_errors"):
        stack.compile(program, X)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        torch.compile(program, backend="stack")(X)


LAYER = torch.nn.Linear(3, 3)


def converted(x: Any) -> Any:
    LAYER.to(torch.float32)
    return LAYER(x)


def given_its_own(x: Any) -> Any:
    x.data = x.data
    return x * 2


def given_its_own_in_steps(x: Any) -> Any:
    x.data = x.detach().data.float()
    return x * 2


@pytest.mark.each
@pytest.mark.parametrize("program", [converted, given_its_own, given_its_own_in_steps])
@pytest.mark.parametrize("whole", [True, False])
def test_an_argument_may_be_given_the_memory_that_it_has(whole: bool, program: Any) -> None:
    x = torch.randn(2, 3)
    torch._dynamo.reset()
    call = stack.compile(program, x) if whole else torch.compile(program, backend="stack")
    where, version = x.data_ptr(), x._version
    torch.testing.assert_close(call(x), program(x.clone()))
    assert (x.data_ptr(), x._version) == (where, version)


@pytest.mark.parametrize("compiles", [stack.compile, through_torch])
def test_a_part_of_its_memory_is_other_memory(compiles: Any) -> None:
    def program(x: Any) -> Any:
        x.data = x.data.t()
        return x * 2

    with pytest.raises(Exception, match=r"`x\.data = `"):
        compiles(program, X.clone())


def test_element_types_that_the_ir_lacks_are_named() -> None:
    narrow = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(UnsupportedOp, match=r"argument x .*\n.*float4_e2m1fn_x2; known: bool"):
        stack.compile(lambda x: x.reshape(2, 2), narrow)
    with pytest.raises(UnsupportedOp, match=r"aten\._to_copy.*  \(test_errors\.py:\d+\)"):
        stack.compile(lambda x: x.to(torch.complex32).real.float(), X)


def test_a_fault_of_ours_is_not_called_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.frontends.torch.compile.dynamo_backend.import_graph", None)
    with pytest.raises(TypeError, match="not callable") as raised:
        stack.compile(lambda x: x + 1, X)
    assert raised.value.__notes__ == [FAULT]


def test_arguments_that_do_not_fit_the_signature_raise_as_eager() -> None:
    for given in ((), (X, X)):
        compiled = stack.compile(torch.nn.Linear(3, 2))  # captured in its first call
        with pytest.raises(TypeError, match="positional argument") as raised:
            compiled.prepare(*given)
        assert raised.value.__notes__ == [OWN]


def test_a_pass_that_crashes_is_named() -> None:
    class Crash(stack.Pass):
        name = "crash"

        def run(self, func: Any, log: Any) -> Any:
            return func.nothing

    with pytest.raises(AttributeError, match="no attribute 'nothing'") as raised:
        stack.compile(lambda x: x + 1, X, passes=Pipeline([Crash()]))
    assert raised.value.__notes__ == ["in pass 'crash'", FAULT]


def test_a_number_that_is_read_back_is_no_error() -> None:
    compiled = stack.compile(lambda x: x * x.sum().item(), X)
    for x in (X, X + 1):
        torch.testing.assert_close(compiled(x), x * x.sum().item())
