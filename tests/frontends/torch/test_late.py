"""Graphs are derived when gradients are first asked for; until then a call is a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

import stack
from stack.errors import StackError
from stack.frontends.torch.training.joint_graph import JOINTS

Function = Callable[..., Any]


def mlp(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w + b)


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x @ w + b


def several(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x @ w
    return y.sin(), (y > 0).sum(-1), y.detach() * 2, (y + b).tanh()


def masked(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.dropout(x @ w, 0.5) + b


def inner(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = (x @ w).amax()
    return (x @ w) * scale + b


def fresh(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    shapes = ((5, 7), (7, 3), (3,))
    return [torch.randn(s, dtype=dtype).requires_grad_() for s in shapes]


def joints() -> int:
    """The number of graphs that were derived in this process."""
    return len(JOINTS)


def held(tensors: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> None:
    for ours, theirs in zip(tensors, like, strict=True):
        torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=1e-5, atol=1e-5)


def test_a_call_derives_nothing() -> None:
    args = fresh()
    compiled = stack.compile(mlp, *args)
    before = joints()
    for _ in range(3):
        found = compiled(*args)
        assert found.requires_grad and not found.is_leaf
        held([found], [mlp(*(x.double() for x in args))])
    assert joints() == before


@pytest.mark.every(2)
@pytest.mark.parametrize("fn", [mlp, linear, several, masked, inner])
def test_gradients_of_every_step(fn: Function) -> None:
    args = fresh()
    compiled = stack.compile(fn, *args)
    for _ in range(3):
        args = fresh()
        torch.manual_seed(3)
        ours = compiled(*args)
        torch.manual_seed(3)
        theirs = fn(*args)
        pairs = [(ours, theirs)] if isinstance(ours, torch.Tensor) else [*zip(ours, theirs)]
        assert [a.requires_grad for a, _ in pairs] == [b.requires_grad for _, b in pairs]
        held([a for a, _ in pairs], [b for _, b in pairs])
        tangents = [torch.randn_like(b) for _, b in pairs if b.requires_grad]
        held(
            grad([a for a, _ in pairs if a.requires_grad], args, tangents),
            grad([b for _, b in pairs if b.requires_grad], args, tangents),
        )


def test_a_graph_is_derived_once_and_its_forward_pass_compiled_once() -> None:
    args = fresh()
    before = joints()
    compiled = stack.compile(mlp, *args)
    first, second = compiled(*args), compiled(*args)
    for result in (first, second, compiled(*args), compiled(*args)):
        held(grad(result.sum(), args), grad(mlp(*args).sum(), args))
    assert joints() == before + 1
    assert len(compiled.graphs) == len(compiled.gradients) == 1


def test_some_of_the_arguments_and_results() -> None:
    x, w, b = fresh()
    w.requires_grad_(False)
    compiled = stack.compile(several, x, w, b)
    first, count, still, last = compiled(x, w, b)
    assert (first.requires_grad, last.requires_grad) == (True, True)
    assert not count.requires_grad and not still.requires_grad
    theirs = several(x, w, b)[3]
    held(grad(last.sum(), (x, b)), grad(theirs.sum(), (x, b)))
    expanded = torch.randn(5, 1).expand(5, 3)
    held(
        grad(compiled(x, w, b)[0], x, expanded),
        grad(several(x, w, b)[0], x, expanded),
    )


def test_a_graph_is_gone_after_its_backward_pass() -> None:
    args = fresh()
    result = stack.compile(mlp, *args)(*args)
    kept = grad(result.sum(), args, retain_graph=True)
    held(grad(result.sum(), args), kept)
    with pytest.raises(RuntimeError, match="a second time"):
        grad(result.sum(), args)


def test_second_derivatives_are_refused() -> None:
    args = fresh()
    compiled = stack.compile(mlp, *args)
    for _ in range(2):
        first = grad(compiled(*args).sum(), args[0], create_graph=True)[0]
        assert first.requires_grad
        for of in args:
            with pytest.raises(RuntimeError, match="double backward"):
                grad(first.sum(), of, allow_unused=True, retain_graph=True)


def test_arguments_written_before_the_backward_pass() -> None:
    args = fresh()
    result = stack.compile(mlp, *args)(*args)
    with torch.no_grad():
        args[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: argument 1"):
        grad(result.sum(), args)
    args = fresh()
    result, theirs = stack.compile(linear, *args)(*args), linear(*args)
    with torch.no_grad():
        args[2].mul_(2)  # the derivative of a sum reads neither of its operands
    held(grad(result.sum(), args), grad(theirs.sum(), args))


def test_checkpoints_count_what_is_kept() -> None:
    args = fresh()
    x, w, b = args[0], torch.randn(7, 7, requires_grad=True), torch.randn(7, requires_grad=True)
    compiled = stack.compile(mlp, x, w, b)

    def layers(call: Function) -> torch.Tensor:
        y = x
        for _ in range(3):
            y = checkpoint(call, y, w, b, use_reentrant=False)
        return y.sum()

    held(grad(layers(compiled), (x, w, b)), grad(layers(mlp), (x, w, b)))


def test_hooks_of_what_is_kept_see_it() -> None:
    args = fresh()
    compiled = stack.compile(mlp, *args)
    seen: list[torch.Size] = []

    def pack(kept: torch.Tensor) -> torch.Tensor:
        seen.append(kept.shape)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        result = compiled(*args)
    assert seen
    held(grad(result.sum(), args), grad(mlp(*args).sum(), args))


def test_inference_before_and_after() -> None:
    args = fresh()
    compiled = stack.compile(mlp, *args)
    compiled(*args).sum().backward()
    with torch.no_grad():
        assert not compiled(*args).requires_grad
    plain = [x.detach() for x in args]
    held([compiled(*plain)], [mlp(*plain)])
    assert not compiled(*plain).requires_grad


def test_other_settings_in_the_backward_pass() -> None:
    args = fresh()
    result, theirs = stack.compile(mlp, *args)(*args), mlp(*args)
    with torch.autocast("cpu", torch.bfloat16):
        found = grad(result.sum(), args)
    held(found, grad(theirs.sum(), args))


def test_what_is_refused_is_told_when_gradients_are_asked_for() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    compiled = stack.compile(lambda x: torch.linalg.eigvalsh(x @ x.mT).sum(), x, strict=False)
    held([compiled(x)], [torch.linalg.eigvalsh(x @ x.mT).sum()])
    held(grad(compiled(x), x), grad(torch.linalg.eigvalsh(x @ x.mT).sum(), x))
    with pytest.raises(StackError):
        stack.compile(lambda x: torch.linalg.eigvalsh(x @ x.mT).sum(), x, strict=True)


@pytest.mark.parametrize("fn", [mlp, linear, several])
def test_the_same_function_without_gradients_is_not_compiled_again(fn: Function) -> None:
    args = fresh()
    compiled = stack.compile(fn, *args)
    modes: list[Any] = [torch.no_grad, torch.inference_mode]
    for mode in modes:
        with mode():
            found, theirs = compiled(*args), fn(*args)
        held(*((x if isinstance(x, tuple) else (x,)) for x in (found, theirs)))
    first, *more = compiled.graphs
    assert more, "each mode has a graph of its own"
    for graph in more:
        assert graph.executables[()] is first.executables[()]
        assert "captured again" in graph.run.notes
        assert graph.run.stages == first.run.stages
        assert graph.run.coverage == first.run.coverage


def test_other_shapes_and_frozen_weights_are_compiled_again() -> None:
    args = fresh()
    compiled = stack.compile(linear, *args)
    longer = [torch.randn(9, 7), *args[1:]]
    held([compiled(*longer)], [linear(*longer)])
    first, second = compiled.graphs
    assert first.executables[()] is not second.executables[()]
    layer, x = torch.nn.Linear(7, 3), args[0].detach()
    frozen = stack.compile(layer, x, freeze=True)
    with torch.no_grad():
        held([frozen(x)], [layer(x)])
    first, second = frozen.graphs
    assert first.captured.weights != second.captured.weights
    assert first.executables[()] is not second.executables[()]
