"""Values have the names of the user's variables, and only where a line assigns just that value."""

from __future__ import annotations

import torch

import stack
from stack.calls.training import train_runs
from stack.explore.lowering import Settings
from stack.explore.target import ExampleCall


def named(fn, *shapes: tuple[int, ...]) -> dict[str, str]:
    """The imported nodes: op by name."""
    func = stack.trace(fn, *(torch.ones(s) for s in shapes))
    assert stack.parse(str(func)) is func
    return {name: node.op for node, name in func.body.names.items()}


def test_last_op_of_a_line_is_the_variable():
    def attention(x, wq, wk):
        q = x @ wq
        k = x @ wk
        scores = q @ k.T / 8.0
        probs = torch.softmax(scores, -1)
        return probs @ q

    found = named(attention, (16, 8), (8, 8), (8, 8))
    assert [found[n] for n in ("q", "k", "scores", "probs")] == ["dot", "dot", "div", "div"]
    assert "exp" in found  # a part of the softmax
    assert "mm_3" in found  # what is returned is assigned to nothing
    assert not any(n.startswith(("scores_", "probs_")) for n in found)


def test_a_variable_that_is_assigned_again_gets_a_number():
    def repeated(x):
        h = x.sin()
        h = h.cos()
        h += 1.0
        return h.tanh()

    found = named(repeated, (4,))
    assert [found[n] for n in ("h", "h_1", "h_2", "tanh")] == ["sin", "cos", "add", "tanh"]


def test_of_several_results_only_the_one_that_is_read():
    def norm(x, w, b):
        mean = torch.nn.functional.layer_norm(x, (8,), w, b)
        left, right = mean.chunk(2, -1)
        gate = torch.nn.functional.silu(left) * right
        return gate

    found = named(norm, (4, 8), (8,), (8,))
    assert found["mean"] == "add"  # and not the mean, which torch's op gives as well
    assert found["gate"] == "mul"
    assert not {"left", "right"} & set(found)  # slices of one op


def test_a_matrix_product_under_a_reshape_is_the_variable_too():
    def linear(x, w):
        y = torch.nn.functional.linear(x, w)
        return y.relu()

    found = named(linear, (2, 3, 8), (4, 8))
    assert found["y"] == "dot"
    assert found.get("y_1", "reshape") == "reshape"


def test_a_function_gives_its_own_variable_first():
    def helper(a):
        inner = a.exp()
        return inner

    def outer(x):
        value = helper(x)
        other = helper(x + 1.0)
        return value * other

    found = named(outer, (4,))
    assert found["inner"] == found["inner_1"] == "exp"
    assert "value" not in found


def test_derivatives_have_no_variables_of_the_forward_pass():
    def loss(x, w):
        y = x @ w
        z = torch.tanh(y)
        return z.sum()

    args = (torch.ones(4, 8), torch.ones(8, 8, requires_grad=True))
    runs = train_runs(ExampleCall("loss", loss, args, "torch"), Settings(backend="triton"))
    names = runs["forward"]["imported"].func.body.names
    assert {n.op for n, name in names.items() if name in ("y", "z")} == {"dot", "tanh"}
    assert not {"y", "z"} & set(runs["backward"]["imported"].func.body.names.values())
