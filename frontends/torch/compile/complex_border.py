"""Complex arrays at the border of a graph: passed in and out as pairs of real numbers.

An input is read through `view_as_real`; a result is `view_as_complex` of real numbers. Everything
between is real (see `aten.complex_numbers`).
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from stack.frameworks.torch_private import memory_id, pytree
from stack.frontends.torch.importer.border import Border, example_of

aten = torch.ops.aten


def real_border(gm: GraphModule) -> None:
    """Make complex inputs and results of a graph pairs of real numbers, in place.

    Inserts `view_as_real` and `view_as_complex` between each of them and its users.
    """
    last = gm.graph.output_node()
    if not any(map(_is_complex, gm.graph.nodes)):
        return
    for holder in gm.graph.find_nodes(op="placeholder"):
        if _is_complex(holder):
            _through_views(gm.graph, holder, last)
    for made in Border(gm.graph).fresh:
        if _is_complex(made):
            _through_views(gm.graph, made, None)
    gm.recompile()


def _is_complex(node: Node) -> bool:
    value = example_of(node)
    return value is not None and value.is_complex()


def _through_views(graph: Graph, source: Node, output: Node | None) -> None:
    """Replace a value for its users, except `output`, by `view_as_complex` of its real parts.

    The real parts of a result get memory of their own, and the result is a view of it.
    """
    users = [u for u in source.users if u is not output]
    copy = () if source.op == "placeholder" else (aten.clone.default,)
    chain = (
        aten.resolve_conj.default, aten.view_as_real.default, *copy, aten.view_as_complex.default
    )  # fmt: skip
    node = source
    for target in chain:
        value = node.meta["val"]
        with graph.inserting_after(node):
            made = graph.call_function(target, (node,))
        with value.fake_mode:
            made.meta["val"] = target(value)
        node = made
    for user in users:
        user.replace_input_with(source, node)
    memory = _memories(source)
    pending = list(node.users) if copy else []
    while pending:  # views of the source now view the replacement
        view = pending.pop()
        if view.op == "call_function" and memory == _memories(view):
            args, kwargs = map_arg((view.args, view.kwargs), lambda n: n.meta["val"])
            with source.meta["val"].fake_mode:
                view.meta["val"] = view.target(*args, **kwargs)  # pyright: ignore
            pending.extend(view.users)


def _memories(node: Node) -> set[int]:
    values = pytree.tree_leaves(node.meta.get("val"))
    return {memory_id(v) for v in values if isinstance(v, torch.Tensor)}
