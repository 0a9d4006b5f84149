"""Values have the names of the user's variables, and only where a line assigns just that value."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import stack


def named(fn, *shapes: tuple[int, ...]) -> dict[str, str]:
    """The imported nodes: op by name."""
    func = stack.trace(fn, *(jnp.ones(s) for s in shapes))
    assert stack.parse(str(func)) is func
    return {name: node.op for node, name in func.body.names.items()}


def norm(x):
    size = jnp.mean(x * x, -1, keepdims=True)
    return x * jax.lax.rsqrt(size)


def attention(x, wq):
    rows = norm(x)
    q = rows @ wq
    scores = q @ q.T / 8.0
    probs = jax.nn.softmax(scores, -1)
    out = (
        probs  # over two lines
        @ q
    )
    out += 1.0
    return out.sum()


def test_last_op_of_a_line_is_the_variable():
    found = named(attention, (16, 8), (8, 8))
    wanted = {"size": "div", "rows": "mul", "q": "dot", "scores": "div", "probs": "div"}
    assert {n: found[n] for n in wanted} == wanted
    assert (found["out"], found["out_1"]) == ("dot", "add")
    assert "exp" in found  # a part of the softmax


def test_derivatives_keep_the_names_of_values_alone():
    found = named(jax.grad(attention), (16, 8), (8, 8))
    wanted = {"size": "div", "rows": "mul", "q": "dot", "scores": "div", "probs": "div"}
    assert {n: found[n] for n in wanted} == wanted
    assert not any(n.startswith(("scores_", "probs_", "q_", "rows_")) for n in found)


def test_what_a_library_gives_back_is_not_guessed():
    def twice(x):
        both = jax.tree.map(lambda a: a * 2.0, {"a": x, "b": x + 1.0})
        pair = jax.jvp(jnp.tanh, (x,), (x,))
        return both["a"] + both["b"] + pair[0] + pair[1]

    assert not {"both", "pair"} & set(named(twice, (4,)))


def test_loops_name_what_their_bodies_assign():
    def loop(x):
        def step(carry, _):
            turned = jnp.sin(carry)
            return turned * 2.0, turned

        return jax.lax.scan(step, x, None, length=3)

    func = stack.trace(loop, jnp.ones(4))
    (node,) = [n for n in func.nodes if n.op == "while"]
    assert "turned" in node.blocks[1].names.values()
