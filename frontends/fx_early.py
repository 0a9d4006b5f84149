"""Sums of the backward pass that the forward pass may take, as it reads the same arrays.

The gradient of a max counts ties along an array that the forward pass has read before; the gradient
of a softmax written out sums multiples d_m e_mk of its exponentials, which is d_m sum_k e_mk. Where
such small results are there already, the backward pass reads the array once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from stack.frontends.dynamo_elementwise import is_elementwise
from stack.frontends.fx_values import example_of, forward_pass

aten = torch.ops.aten
FOLDS = frozenset({aten.amax, aten.amin, aten.sum})
LEAST = 1 << 18  # elements of an array that is worth it
SMALL = 64  # elements of an array for each of its fold
Modules = tuple[GraphModule, GraphModule]


def take_out_rows(graph: Graph) -> int:
    """Rewrite sum_k d_m e_mk as d_m sum_k e_mk where that sum is there; returns how many."""
    sums: dict[tuple[Any, tuple[int, ...]], Node] = {}
    count = 0
    for node in list(graph.nodes):
        axes = _summed_axes(node)
        if axes is None:
            continue
        found = _multiple(node.args[0], axes)
        other = sums.get((_behind(found[1]), axes)) if found is not None else None
        if found is None or other is None:
            sums.setdefault((_behind(node.args[0]), axes), node)
            continue
        _rewrite(graph, node, axes, found[0], other, found[2])
        count += 1
    return count


def _behind(node: Any) -> Any:
    """What a node is another name of."""
    while node.target in (aten.detach.default, aten.alias.default):
        node = node.args[0]
    return node


def _summed_axes(node: Node) -> tuple[int, ...] | None:
    """The axes that a node sums; None where it is no plain sum of a float array."""
    if node.target is not aten.sum.dim_IntList or node.kwargs:
        return None
    value, made = example_of(node.args[0]), example_of(node)
    axes: Any = node.args[1] or ()
    if value is None or made is None or not value.is_floating_point() or not axes:
        return None
    return tuple(sorted(a % value.dim() for a in axes)) if made.dtype == value.dtype else None


def _multiple(node: Any, axes: tuple[int, ...]) -> tuple[Node, Node, bool] | None:
    """d, e and whether the sign changes, where a node is d e with d of one element along axes."""
    changes = False
    while node.target is aten.neg.default:
        node, changes = node.args[0], not changes
    if node.target is not aten.mul.Tensor:
        return None
    value = example_of(node)
    first, second = node.args
    pairs: list[tuple[Any, Any]] = [(first, second), (second, first)]
    for row, table in pairs:
        full = example_of(table)
        if value is None or full is None or full.shape != value.shape or full.dtype != value.dtype:
            continue
        small = example_of(_behind_expand(row))
        if small is None or small.dtype != value.dtype:
            continue
        missing = value.dim() - small.dim()
        if all(a < missing or small.shape[a - missing] == 1 for a in axes):
            return _behind_expand(row), table, changes
    return None


def _behind_expand(node: Any) -> Any:
    while isinstance(node, Node) and node.target is aten.expand.default:
        node = node.args[0]
    return node


def _rewrite(
    graph: Graph, node: Node, axes: tuple[int, ...], row: Node, total: Node, changes: bool
) -> None:
    value = node.meta["val"]
    table = node.all_input_nodes[0].meta["val"]
    kept = [1 if i in axes else int(s) for i, s in enumerate(table.shape)]

    def call(target: Any, *args: Any) -> Node:
        new = graph.call_function(target, args)
        new.meta = {k: v for k, v in node.meta.items() if k != "tensor_meta"}
        new.meta["val"] = target(*map_arg(args, lambda n: n.meta["val"]))
        return new

    with graph.inserting_before(node), value.fake_mode:
        made = call(aten.mul.Tensor, call(aten.view.default, total, kept), row)
        made = call(aten.neg.default, made) if changes else made
        made = call(aten.view.default, made, list(value.shape))
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def early(graph: Graph, num_fwd_outputs: int) -> tuple[list[Node], list[Node]]:
    """What of the backward pass no incoming gradient is in.

    Returns folds much smaller than what they read, which the forward pass may compute, and
    elementwise values, which neither pass should keep for the other.
    """
    _, forward = forward_pass(graph, num_fwd_outputs)
    late: set[Node] = set()
    known: set[Node] = set()  # at hand in the forward pass, element by element
    found: list[Node] = []
    between: list[Node] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            (late if "tangents" in node.name else known).add(node)
        elif not late.isdisjoint(node.all_input_nodes):
            late.add(node)
        elif node in forward:
            known.add(node)
        elif is_elementwise(node) and known.issuperset(node.all_input_nodes):
            known.add(node)
            between.append(node)
        elif _is_small_fold(node) and known.issuperset(node.all_input_nodes):
            found.append(node)
    return found, between if found else []


def _is_small_fold(node: Node) -> bool:
    if getattr(node.target, "overloadpacket", None) not in FOLDS:
        return False
    read, made = example_of(node.args[0]), example_of(node)
    if read is None or made is None or read.numel() < LEAST:
        return False
    return made.numel() * SMALL <= read.numel()


def with_early(
    joint: GraphModule, num_fwd_outputs: int, folds: list[Node], cut: Callable[[int], Modules]
) -> Modules:
    """Cut a joint graph whose forward pass gives `folds` too, which it then only keeps."""
    if not folds:
        return cut(num_fwd_outputs)
    last = joint.graph.output_node()
    outs = pytree.arg_tree_leaves(*last.args)
    about = pytree.arg_tree_leaves(last.meta.get("desc", [None] * len(outs)))
    outs[num_fwd_outputs:num_fwd_outputs] = folds
    about[num_fwd_outputs:num_fwd_outputs] = [None] * len(folds)
    last.args = (outs,)
    last.meta["desc"] = about
    forward, backward = cut(num_fwd_outputs + len(folds))
    last = forward.graph.output_node()
    gone = slice(num_fwd_outputs, num_fwd_outputs + len(folds))
    results: Any = last.args[0]
    kept = list(results)
    del kept[gone]
    last.args = (tuple(kept),)
    if "desc" in last.meta:
        about = list(last.meta["desc"])
        del about[gone]
        last.meta["desc"] = about
    forward.recompile()
    return forward, backward


__all__ = ["early", "take_out_rows", "with_early"]
