"""Work of every step grows as the function does: calls are counted, no clock is read."""

from __future__ import annotations

from counted import calls_of

from stack.ir import Builder, Func, Node, param, parse, rebuild, tensor, verify

SHORT, LONG = 500, 2000


def large(count: int, constant: float) -> Func:
    """A function whose nodes no function with another constant has: nothing of it is cached."""
    b = Builder()
    b.loc = ("model.py:1 layers.0", "model.py:22 forward")
    x, w = param("x", tensor("f32", 8, 64)), param("w", tensor("f32", 64, 64))
    value = b.mul(x, constant)
    for i in range(count // 10):
        value = b.exp(b.mul(b.add(b.dot(value, w, rule="a b, b c -> a c"), x), float(i)))
        top = b.reduce(value, kind="max", axes=(1,))
        value = b.sub(value, b.broadcast(top, axes=(0,), type=x.type))
        value = b.reshape(value, type=tensor("f32", 8, 8, 8))
        value = b.reshape(b.transpose(value, perm=(0, 2, 1)), type=x.type)
    return b.func("large", [x, w], [value])


def work(nodes: int, constant: float) -> dict[str, int]:
    """Calls of each step."""
    counts: dict[str, int] = {}
    func, counts["build"] = calls_of(lambda: large(nodes, constant))
    text, counts["print"] = calls_of(lambda: str(func))
    again, counts["parse"] = calls_of(lambda: parse(text))
    _, counts["verify"] = calls_of(lambda: verify(func))
    same, counts["rebuild"] = calls_of(lambda: rebuild(func))
    assert again is func
    assert same is func
    assert len(func.nodes) >= nodes
    return counts


def test_no_step_looks_at_nodes_twice_as_often_in_a_longer_function() -> None:
    work(SHORT, 1.5)  # what is built once
    few, many = work(SHORT, 2.5), work(LONG, 3.5)
    grown = {step: many[step] / few[step] for step in few}
    # a step that looks at all nodes for each one grows four times as much; caches are full or not
    assert max(grown.values()) < 1.3 * LONG / SHORT, grown


def test_nodes_are_cheap() -> None:
    x = param("x", tensor("f32", 8))
    attrs = [{"axis": i, "kind": "sum", "reverse": False} for i in range(1000)]
    made, calls = calls_of(lambda: [Node("scan", (x,), a, x.type) for a in attrs])
    assert len(made) == 1000
    assert calls / 1000 < 40, f"{calls / 1000} calls a node"
