"""Traces a module or function into one graph of ATen ops: Dynamo, then the recorder or AOTAutograd.

Work that only some programs need is asked for by one look at what the graph calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import has_side_effect
from torch.nn.attention import SDPBackend, sdpa_kernel

from stack.errors import StackError
from stack.frameworks import torch_private as private
from stack.frontends.torch.graphs.data_dependence import refuse_data_dependent
from stack.frontends.torch.graphs.inference_mode import without_inference_mode
from stack.frontends.torch.tracing.decompositions import (
    decomposition,
    decompositions,
    functions_traced,
    tables,
    write_out,
)
from stack.frontends.torch.tracing.global_scopes import nameless
from stack.frontends.torch.tracing.layouts import BY_STRIDES, lay_out_as_eager
from stack.frontends.torch.tracing.recorder import has_known_sizes, recorded

# It has no result, but is not dead code: it raises.
has_side_effect(torch.ops.aten._linalg_check_errors.default)


@contextmanager
def plain_tracing() -> Iterator[None]:
    """Context in which attention is traced as separate ops, and checks of linear algebra as nodes.

    By default torch picks a fused attention kernel and threads an effect token through the checks.
    """
    with private.without_effect("aten::_linalg_check_errors"), sdpa_kernel(SDPBackend.MATH):
        yield


# ---- tracing

# Dynamo's settings for all captures. Not every release has the first two: no garbage collection
# after each capture, and no profiler marks in the generated code, which take as long as the rest of
# it. By default Dynamo does not trace recurrent modules.
_SETTINGS = {"run_gc_after_compile": False, "record_runtime_overhead": False, "allow_rnn": True}
# Dynamo's settings for captures of one graph, without calls.
_WHOLE = {
    "replay_side_effects": False,
    "side_effect_replay_policy": "silent",
    "specialize_int": True,
    "specialize_float": True,
    "automatic_dynamic_shapes": False,
}


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Context that silences a logger of torch, whose stack traces repeat raised errors."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def capturing(fn: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Context of every capture with Dynamo.

    Args:
        settings: Dynamo's settings, besides those that all captures need.
    """
    with (
        quiet(private.FAKE_LOG),
        private.dynamo_settings({**_SETTINGS, **settings}),
        nameless(fn),
        functions_traced(),
    ):
        yield


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


class Traced:
    """Dynamo's capture of a callable for example arguments.

    Attributes:
        root: the module whose weights the graph has as inputs; None for a function.
        graph: the Dynamo graph.
        inputs: its inputs for the example arguments.
        marks: one tensor for each of its results.
        result: what the user's callable returns if its graph returns the marks.
    """

    def __init__(self, fn: Any, args: Sequence[Any], dynamic: bool) -> None:
        self.root = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
        settings = {**_WHOLE, "assume_static_by_default": not dynamic}
        with capturing(fn, settings), torch.no_grad():
            self.output: Any = private.capture_whole(fn, args)
        if self.output.backend_input is None:
            raise StackError(f"{fn!r} does no work on tensors: there is nothing to compile")
        self.graph: GraphModule = self.output.backend_input.graph_module
        self.marks = [torch.empty(0) for _ in self.graph.graph.output_node().args[0]]  # pyright: ignore
        self.inputs: Sequence[Any] = ()
        scope = self.output.graph_capture_output.f_globals
        surround = self.output.forward_callable(compiled_fn=self._run, extra_globals=scope)
        self.result = surround(*((self.root, *args) if self.root is not None else args))

    def _run(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        """Stands for the compiled graph in the code that Dynamo generates around its call."""
        self.inputs = inputs
        return tuple(self.marks)


def called(gm: GraphModule) -> set[Any]:
    """Returns all functions that a graph and its nested graphs call, and the names of these, and of
    methods.
    """
    graphs = [module.graph for module in gm.modules() if isinstance(module, GraphModule)]
    targets = {node.target for graph in graphs for node in graph.nodes}
    return targets | {getattr(target, "__name__", None) for target in targets}


def functional_graph(traced: Traced) -> Functional:
    """Traces the graph into ATen ops without mutation."""
    gm, calls = traced.graph, called(traced.graph)
    if not calls.isdisjoint(BY_STRIDES):
        lay_out_as_eager(gm, traced.inputs)
    if private.ENTER_INFERENCE in calls:
        without_inference_mode(gm)
    if not has_known_sizes(gm):
        refuse_data_dependent(gm)
    if not calls.isdisjoint(tables().written):
        write_out(gm)
    holders = gm.graph.find_nodes(op="placeholder")
    names = [n.name.removeprefix("l_").strip("_") for n in holders]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
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
