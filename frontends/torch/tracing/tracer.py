"""Traces a module or function into one graph of ATen ops: Dynamo, then AOTAutograd."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.node import has_side_effect
from torch.nn.attention import SDPBackend, sdpa_kernel

from stack.errors import StackError
from stack.frameworks import torch_private as private
from stack.frontends.torch.aten.complex_numbers import MADE_OF_PARTS
from stack.frontends.torch.aten.lowering import LOWERINGS
from stack.frontends.torch.graphs.data_dependence import refuse_data_dependent
from stack.frontends.torch.graphs.inference_mode import without_inference_mode
from stack.frontends.torch.tensors import random_ops
from stack.frontends.torch.tensors.random_ops import draws_as_eager
from stack.frontends.torch.tracing import layouts
from stack.frontends.torch.tracing.functions import decomposed, functions_traced, write_out
from stack.frontends.torch.tracing.global_scopes import nameless
from stack.frontends.torch.tracing.recorder import has_known_sizes, recorded

# It has no result, but is not dead code: it raises.
has_side_effect(torch.ops.aten._linalg_check_errors.default)


# These ops are lowered as one, but decomposed in a graph that is partitioned into forward and
# backward passes: the reductions inside a softmax may then be saved on their own. Torch's
# partitioner knows permute, not transpose, as a view.
_ROW_OPS = frozenset({
    "aten._softmax.default", "aten._softmax_backward_data.default",
    "aten._log_softmax.default", "aten._log_softmax_backward_data.default",
})  # fmt: skip
_VIEWS = frozenset({"aten.transpose.int"})


@cache
def decompositions(cut: bool = False, split: bool = False) -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions of all ops that we do not lower.

    Args:
        cut: for a graph that will be partitioned.
        split: also decompose row ops such as softmax.
    """
    kept = LOWERINGS.keys() | MADE_OF_PARTS
    kept -= (_VIEWS if cut else set()) | (_ROW_OPS if split else set())
    found = {
        op: fn
        for op, fn in private.decompositions().items()
        if isinstance(op, private.OpOverload) and str(op) not in kept and draws_as_eager(op)
    }
    for table in (random_ops.DECOMPOSITIONS, layouts.DECOMPOSITIONS, decomposed()):
        found |= table
    return found


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


class _Yield(Exception):
    """Raised to stop the user's function as soon as the traced graph has received its inputs."""


class Traced:
    """Dynamo's capture of a callable: the graph, and the code around its one call."""

    def __init__(self, fn: Any, args: Sequence[Any], dynamic: bool) -> None:
        self.fn = fn
        self.root = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
        settings = {**_WHOLE, "assume_static_by_default": not dynamic}
        # sizes that are equal in the example may differ in later calls
        with capturing(fn, settings), torch.no_grad(), private.duck_sizes(False):
            self.output: Any = private.capture_whole(fn, args)
        if self.output.backend_input is None:
            raise StackError(f"{fn!r} does no work on tensors: there is nothing to compile")
        self.graph: GraphModule = self.output.backend_input.graph_module

    def _around(self, run: Callable[..., Any], args: Sequence[Any]) -> Any:
        scope = self.output.graph_capture_output.f_globals
        surround = self.output.forward_callable(compiled_fn=run, extra_globals=scope)
        return surround(*((self.root, *args) if self.root is not None else args))

    def inputs(self, args: Sequence[Any]) -> list[Any]:
        """Returns the inputs of the graph for a call with `args`."""
        found: list[Any] = []

        def stop(*values: Any) -> Any:
            found.extend(values)
            raise _Yield

        with suppress(_Yield):
            self._around(stop, args)
        return found

    def result(self, args: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Returns the result of the user's function if its graph returns `outputs`."""
        return self._around(lambda *_: tuple(outputs), args)


def functional_graph(traced: Traced, args: Sequence[Any]) -> Functional:
    """Traces the graph into ATen ops without mutation."""
    gm, source = traced.graph, traced.output.backend_input
    given = traced.inputs(args)
    without_inference_mode(gm)
    if not has_known_sizes(gm):
        refuse_data_dependent(gm)
    write_out(gm)
    holders = gm.graph.find_nodes(op="placeholder")
    names = [n.name.removeprefix("l_").strip("_") for n in holders]
    with torch.no_grad(), plain_tracing():
        found = recorded(gm, decompositions())
        if found is not None:
            return Functional(found.graph, given, names, found.written)
        fakes = [n.meta["example_value"] for n in holders]
        for node, value in zip(holders, fakes, strict=True):
            node.meta["val"] = value
        fakes = [x.detach() if isinstance(x, torch.Tensor) else x for x in fakes]
        with private.traced_in(source.fake_mode, source.tensor_to_context):
            graph, signature = private.export_with_aot(gm, fakes, decompositions())
    own = {n: gm.get_parameter(n) for n in signature.parameters}
    own |= {n: gm.get_buffer(n) for n in signature.buffers}
    inputs = [*own, *signature.user_inputs]
    changed = [*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()]
    written = map(inputs.index, [*changed, *signature.user_inputs_to_mutate.values()])
    return Functional(graph, [*own.values(), *given], [*own, *names], [*written])
