"""Integers that are indices of an axis: values past the limits are refused by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hosted_cases import CASES, Case, own

import stack
from stack.errors import RuleError, UsageError
from stack.hosted import find
from stack.hosted.nodes import custom
from stack.ir.builder import Builder, param
from stack.ir.types import TensorType, dtype_of
from stack.measure.reference import reference


def limited() -> list[Any]:
    """Operands with limits, of all operators: a small case and the place of the operand."""
    found: list[Any] = []
    for name in sorted(own()):
        case = min((c for c in CASES if c.name == name), key=lambda c: c.elements)
        for place, elements in enumerate(find(name).elements):
            if elements.relation:
                label = f"{name}-{find(name).operands[place]}"
                found.append(pytest.param(case, place, id=label))
    return found


def wrong(case: Case, place: int) -> list[list[np.ndarray]]:
    """Arguments with one integer past a limit: the first above, and the first below."""
    made: list[list[np.ndarray]] = []
    op, elements = case.op, case.op.elements[place]
    arrays = case.arrays("float32")
    named = op.rule_for([a.ndim for a in arrays]).sizes([a.shape for a in arrays])
    above = int(named.get(elements.limit, elements.limit)) + (elements.relation == "<=")
    for value in (above, elements.least - (2 if elements.beside == "-1" else 1)):
        held = [a.copy() for a in arrays]
        if np.can_cast(np.min_scalar_type(value), held[place].dtype):
            held[place].reshape(-1)[-1] = value
            made.append(held)
    return made


LIMITED = limited()


def told(case: Case, place: int) -> str:
    return f"{case.name}: '{case.op.operands[place]}' (has|adds up to) -?[0-9]+, its rule asks for"


@pytest.mark.parametrize(("case", "place"), LIMITED)
def test_numpy_refuses(case: Case, place: int) -> None:
    for arrays in wrong(case, place):
        with pytest.raises(RuleError, match=told(case, place)):
            case.op(*arrays, **case.attributes)


@pytest.mark.parametrize(("case", "place"), LIMITED)
def test_torch_refuses_also_within_derivatives_and_batches(case: Case, place: int) -> None:
    torch = pytest.importorskip("torch")
    for arrays in wrong(case, place):
        tensors = [torch.from_numpy(a) for a in arrays]
        floats = [t.requires_grad_() for t in tensors if t.is_floating_point()]
        batched = tuple(0 if t.is_floating_point() else None for t in tensors)
        twice = [torch.stack([t, t]) if d == 0 else t for t, d in zip(tensors, batched)]
        call = lambda *ts: case.op(*ts, **case.attributes)
        with pytest.raises(RuleError, match=told(case, place)):
            call(*tensors)
        if floats:
            with pytest.raises(RuleError, match=told(case, place)):
                torch.vmap(call, batched)(*twice)


def first_of(case: Case, rest: list[Any], x: Any) -> Any:
    """The operator as a function of its first argument."""
    return case.op(x, *rest, **case.attributes)


@pytest.mark.every(3)
@pytest.mark.parametrize(("case", "place"), LIMITED)
def test_jax_refuses_also_within_derivatives(case: Case, place: int) -> None:
    jax = pytest.importorskip("jax")
    for arrays in wrong(case, place):
        given = [jax.numpy.asarray(a) for a in arrays]
        call = lambda *xs: case.op(*xs, **case.attributes)
        with pytest.raises(RuleError, match=told(case, place)):
            call(*given)
        if arrays[0].dtype == np.float32:
            with pytest.raises(RuleError, match=told(case, place)):
                jax.vjp(partial(first_of, case, given[1:]), given[0])


def test_every_operand_of_integers_has_limits_or_any_value() -> None:
    """Bytes are codes; the others are numbers without a limit, by name."""
    free = {
        "attention.with_documents": {"of_queries", "of_keys"},  # compared with each other
        "attention.with_tree": {"ends"},  # `values` asks more
        "attention.paged": {"table", "lengths"},
        "scan.segmented": {"starts"},  # 0, or not
        "qgemm.w4a16_awq": {"qweight", "qzeros"},  # words of codes
        "qgemm.w4a16_gptq": {"qweight", "qzeros"},
    }
    for name in own():
        made = find(name)
        arrays = next(c for c in CASES if c.name == name).arrays()
        whole = {
            n
            for n, e, a in zip(made.operands, made.elements, arrays, strict=True)
            if a.dtype.kind in "iu" and a.itemsize > 1 and not e.relation
        }
        assert whole == free.get(name, set()), name


def test_a_compiled_program_does_not_ask() -> None:
    """Kernels may do anything with such an index; no call waits for its values."""
    torch = pytest.importorskip("torch")
    op = find("moe.dispatch")
    x, tokens = torch.randn(4, 3), torch.tensor([0, -2], dtype=torch.int32)
    with pytest.raises(RuleError, match=r"'tokens' has -2, .* int < t or -1, where t is 4"):
        op(x, tokens)
    compiled = stack.compile(lambda x, tokens: op(x, tokens), x, tokens, strict=True)
    assert torch.equal(compiled(x, tokens)[1], torch.zeros(3))


def test_a_value_beside_the_limits_is_an_attribute() -> None:
    op, logits, target = find("loss.cross_entropy"), np.zeros((3, 5)), np.array([0, 4, 9])
    assert op(logits, target, ignore_index=9)[2] == 0
    with pytest.raises(RuleError, match="where v is 5 and ignore_index is -1"):
        op(logits, target, ignore_index=-1)


def test_limits_name_what_there_is() -> None:
    with pytest.raises(UsageError, match="nothing is called 'k'"):
        stack.op("toys.taken", rule="n, m: int < k -> m")(lambda np, x, at: np.take(x, at))
    with pytest.raises(UsageError, match="nothing is called 'padd'; did you mean 'pad'"):
        rule = "n, m: int < n or padd -> m"

        @stack.op("toys.taken", rule=rule)
        def taken(np: Any, x: Any, at: Any, *, pad: int = -1) -> Any:
            return np.take(x, at)


def test_counts_are_no_more_than_there_is_together() -> None:
    x, weight = np.zeros((8, 3), np.float32), np.zeros((3, 5, 3), np.float32)
    with pytest.raises(RuleError, match=r"'sizes' adds up to 9, .* sum int <= s, where s is 8"):
        find("moe.grouped_gemm")(x, weight, np.array([3, 3, 3], np.int32))


def test_comparing_and_timing_a_program_asks_of_its_arguments() -> None:
    op = find("loss.cross_entropy")
    arrays = [np.zeros((2, 7), np.float32), np.array([0, 9], np.int32)]
    types = [TensorType(dtype_of(a), a.shape) for a in arrays]
    b = Builder()
    params = [param(n, t) for n, t in zip(op.operands, types, strict=True)]
    with pytest.raises(RuleError, match="'target' has 9"):
        reference(b.func("f", params, custom(b, op, params, {})), arrays)
