"""The dataflow graph of a function for viewers of models: nodes in modules, types on edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

from stack.errors import UsageError
from stack.ir.data import Data, scalar_text
from stack.ir.func import Func
from stack.ir.node import Block, Node, is_inline
from stack.ir.printer import attr_text
from stack.ir.traits import is_item, maker, place_of
from stack.report.graph_dot import dot_text
from stack.report.graph_model_explorer import model_explorer_text
from stack.report.viewed_graph import Edge, ViewedGraph, ViewedNode
from stack.run.backend import module_paths, source_lines

# by the suffix of the file
WRITERS: dict[str, Callable[[ViewedGraph], str]] = {
    ".dot": dot_text,
    ".json": model_explorer_text,
}


def write_graph(func: Func, file: Path) -> None:
    """Writes the graph of a function, in the format of the file's suffix.

    Raises UsageError for a suffix that no writer has.
    """
    writer = WRITERS.get(file.suffix)
    if writer is None:
        raise UsageError(
            f"{file}: graphs are written as .dot (Graphviz, Netron) or .json (Model Explorer)"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(writer(graph_of(func)), encoding="utf-8")


def graph_of(func: Func) -> ViewedGraph:
    """Returns a node for each parameter, op, group and result of a function's body, and the edges.

    Scalar constants are attributes of the nodes that read them.
    """
    nodes = [n for n in (*func.params, *func.nodes) if not (is_item(n) or is_inline(n))]
    ids = {node: _label(node, func.body) for node in nodes}
    viewed = [_viewed(node, func.body, ids) for node in nodes]
    for i, result in enumerate(func.results):
        edges = _edges([result], ids)
        viewed.append(ViewedNode(f"return {i}", (), (("type", str(result.type)),), edges))
    return ViewedGraph(func.name, tuple(viewed))


def _viewed(node: Node, body: Block, ids: dict[Node, str]) -> ViewedNode:
    lines = body.locs.get(node, ())
    attrs = [(k, attr_text(v)) for k, v in node.attrs.items() if k != "name" or node.blocks]
    attrs += [(f"operand {i}", _number(a)) for i, a in enumerate(node.args) if is_inline(a)]
    if node.blocks:
        attrs.append(("ops", ", ".join(n.op for n in node.blocks[0].nodes if n.op != "const")))
    attrs += [("source", ", ".join(source_lines(lines)))] if lines else []
    return ViewedNode(
        ids[node],
        _module(node, lines),
        (("type", str(node.type)), *attrs),
        _edges(node.args, ids),
        tuple(map(str, node.types)),
    )


def _label(node: Node, body: Block) -> str:
    """Returns the op and the name of a node, which is unique in its block."""
    if node.op == "param":
        return f"%{node.attrs['name']}"
    return f"{node.op} %{body.names.get(node, node.op)}"


def _number(constant: Node) -> str:
    data: Data = constant.attrs["value"]
    return scalar_text(data.array, data.dtype)


def _module(node: Node, lines: Sequence[str]) -> tuple[str, ...]:
    """Returns the innermost module that contains a node: of a weight, that which its name gives; of
    a group of ops from several modules, that which contains them all.
    """
    if node.op == "param":
        return tuple(str(node.attrs["name"]).split(".")[:-1])
    paths = [path.split(".") for path in module_paths(lines)]
    is_outside = any(" " not in line for line in lines)  # a line without a module
    shared = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return () if is_outside else tuple(names[0] for names in shared)


def _edges(args: Sequence[Node], ids: dict[Node, str]) -> tuple[Edge, ...]:
    return tuple(Edge(ids[maker(a)], place_of(a), str(a.type)) for a in args if maker(a) in ids)
