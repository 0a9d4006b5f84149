"""Traces a Dynamo graph into ATen ops without mutation: decompositions, and the way to go.

Work that only some programs need is asked for by one look at what the graph calls. An op is traced
as wings and packages decompose it, else as itself if it has a lowering, else as torch decomposes
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import has_side_effect
from torch.nn.attention import SDPBackend, sdpa_kernel

from stack.frameworks import torch_private as private
from stack.frontends.torch.aten.complex_numbers import MADE_OF_PARTS
from stack.frontends.torch.aten.lowering import LOWERINGS
from stack.frontends.torch.graphs.data_dependence import refuse_data_dependent
from stack.frontends.torch.graphs.inference_mode import without_inference_mode
from stack.frontends.torch.tensors import random_ops
from stack.frontends.torch.tracing import layouts
from stack.frontends.torch.tracing.dynamo import Decomposition, Traced, tables, write_out
from stack.frontends.torch.tracing.recorder import has_known_sizes, recorded

# It has no result, but is not dead code: it raises.
has_side_effect(torch.ops.aten._linalg_check_errors.default)


_OWN = random_ops.DECOMPOSITIONS | layouts.DECOMPOSITIONS

# These ops are lowered as one, but decomposed in a graph that is partitioned into forward and
# backward passes: the reductions inside a softmax may then be saved on their own. Torch's
# partitioner knows permute, not transpose, as a view.
_ROW_OPS = frozenset({
    "aten._softmax.default", "aten._softmax_backward_data.default",
    "aten._log_softmax.default", "aten._log_softmax_backward_data.default",
})  # fmt: skip
_VIEWS = frozenset({"aten.transpose.int"})


@dataclass(frozen=True)
class Functional:
    """A graph of ATen ops without mutation.

    Attributes:
        inputs: the values of its placeholders: tensors that belong to the graph, then arguments.
        names: the names of its placeholders.
        written: the inputs that the first results are the new values of.
    """

    graph: GraphModule
    inputs: Sequence[Any]
    names: Sequence[str]
    written: Sequence[int]


def functional_graph(traced: Traced) -> Functional:
    """Traces the graph into ATen ops without mutation."""
    gm = traced.graph
    graphs = [module.graph for module in gm.modules() if isinstance(module, GraphModule)]
    targets = {node.target for graph in graphs for node in graph.nodes}
    calls = targets | {getattr(target, "__name__", None) for target in targets}
    if not calls.isdisjoint(layouts.BY_STRIDES):
        layouts.lay_out_as_eager(gm, traced.inputs)
    if private.ENTER_INFERENCE in calls:
        without_inference_mode(gm)
    if not has_known_sizes(gm):
        refuse_data_dependent(gm)
    if not calls.isdisjoint(tables().written):
        write_out(gm)
    holders = gm.graph.find_nodes(op="placeholder")
    names = [n.name.removeprefix("l_").strip("_") for n in holders]
    with torch.no_grad(), plain_tracing():
        found = recorded(gm, decomposition)
    if found is not None:
        return Functional(found.graph, traced.inputs, names, found.written)
    return _exported(traced, holders, names)


def _exported(traced: Traced, holders: Sequence[Any], names: Sequence[str]) -> Functional:
    """Traces the graph with AOTAutograd. Weights of modules inside of it become inputs."""
    gm, source = traced.graph, traced.output.backend_input
    fakes = [n.meta["example_value"] for n in holders]
    for node, value in zip(holders, fakes, strict=True):
        node.meta["val"] = value
    fakes = [x.detach() if isinstance(x, torch.Tensor) else x for x in fakes]
    with (
        torch.no_grad(),
        plain_tracing(),
        private.traced_in(source.fake_mode, source.tensor_to_context),
    ):
        graph, signature = private.export_with_aot(gm, fakes, decompositions())
    own = {n: gm.get_parameter(n) for n in signature.parameters}
    own |= {n: gm.get_buffer(n) for n in signature.buffers}
    inputs = [*own, *signature.user_inputs]
    changed = [*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()]
    written = map(inputs.index, [*changed, *signature.user_inputs_to_mutate.values()])
    return Functional(graph, [*own.values(), *traced.inputs], [*own, *names], [*written])


@contextmanager
def plain_tracing() -> Iterator[None]:
    """Context in which attention is traced as separate ops, and checks of linear algebra as nodes.

    By default torch picks a fused attention kernel and threads an effect token through the checks.
    """
    check = "aten::_linalg_check_errors"
    effect = private.get_effect(check)
    private.register_effect(check, None)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        private.register_effect(check, effect)  # other compilers of the process rely on it


# ---- decompositions


@cache
def decomposition(op: Any) -> Decomposition | None:
    """Returns the decomposition of an ATen op; None for an op without one, or with a lowering."""
    own = tables().decomposed.get(op) or _OWN.get(op)
    is_kept = str(op) in LOWERINGS or str(op) in MADE_OF_PARTS
    return own if own is not None or is_kept else _torchs(op)


@cache
def decompositions(cut: bool = False, split: bool = False) -> dict[Any, Decomposition]:
    """Returns the decompositions of all ops, for AOTAutograd.

    Args:
        cut: for a graph that will be partitioned.
        split: also decompose row ops such as softmax.
    """
    kept = LOWERINGS.keys() | MADE_OF_PARTS
    kept -= (_VIEWS if cut else set()) | (_ROW_OPS if split else set())
    ops = [op for op in private.decompositions() if isinstance(op, private.OpOverload)]
    found = {op: made for op in ops if str(op) not in kept and (made := _torchs(op))}
    return found | _OWN | tables().decomposed


def _torchs(op: Any) -> Decomposition | None:
    """Returns torch's decomposition of an op; None if it draws other numbers than eager."""
    made = private.decompositions().get(op)
    return made if made is not None and random_ops.draws_as_eager(op) else None
