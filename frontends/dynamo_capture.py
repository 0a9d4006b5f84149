"""Capture of a module or function as one graph: Dynamo, then AOTAutograd's functional trace.

Everything private of torch's tracing is called from here and from `dynamo_backend`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
import torch._dynamo
from torch._decomp import global_decomposition_table
from torch._dynamo.convert_frame import CaptureOutput, fullgraph_capture
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import dynamo_timed, get_metrics_context
from torch._export.utils import _compiling_state_context
from torch._functorch._aot_autograd.schemas import GraphSignature
from torch._functorch.aot_autograd import aot_export_module
from torch._guards import TracingContext, tracing
from torch._higher_order_ops.effects import _register_effectful_op
from torch.fx import GraphModule
from torch.fx.experimental import _config as sizes_config
from torch.fx.node import has_side_effect
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from stack.errors import StackError
from stack.frontends import torch_draws, torch_layouts, torch_lists
from stack.frontends.aten import LOWERINGS
from stack.frontends.aten_complex import MADE_OF_PARTS
from stack.frontends.dynamo_notes import Notes, graph_notes
from stack.frontends.dynamo_spared import spared
from stack.frontends.fx_import import Imported, import_graph
from stack.frontends.torch_arrays import check_results, device_of, dtype_of
from stack.frontends.torch_attention import safe_softmax
from stack.frontends.torch_calls import (
    Arguments,
    Call,
    Finish,
    Template,
    TorchCaptured,
    check_text,
    program_name,
)
from stack.frontends.torch_draws import draws_as_eager
from stack.frontends.torch_errors import raise_explained
from stack.frontends.torch_recurrent import in_scans
from stack.frontends.torch_sizes import lone_symbol
from stack.frontends.torch_written import write_out
from stack.ir.builder import param
from stack.ir.dim import Expr
from stack.ir.node import Block, Func, Node, unique_name
from stack.ir.types import TensorType
from stack.run.frontend import Captured

# It gives nothing and is no dead code: it raises.
has_side_effect(torch.ops.aten._linalg_check_errors.default)


# Lowered as one op, but to be apart where a graph is cut into forward and backward passes: the
# reductions that softmax is made of may be kept alone; the partitioner knows permute as a view.
_ROW_OPS = frozenset({
    "aten._softmax.default", "aten._softmax_backward_data.default",
    "aten._log_softmax.default", "aten._log_softmax_backward_data.default",
})  # fmt: skip
_VIEWS = frozenset({"aten.transpose.int"})


@cache
def decompositions(cut: bool = False, split: bool = False) -> dict[Any, Callable[..., Any]]:
    """Torch's decompositions of everything that has no lowering of ours.

    Args:
        cut: for a graph that is partitioned.
        split: of row ops such as softmax too.
    """
    own = {torch.ops.aten._safe_softmax.default: safe_softmax}
    table = global_decomposition_table["post_autograd"] | own
    kept = LOWERINGS.keys() | MADE_OF_PARTS
    kept -= (_VIEWS if cut else set()) | (_ROW_OPS if split else set())
    found = {
        op: fn
        for op, fn in table.items()
        if isinstance(op, torch._ops.OpOverload) and str(op) not in kept and draws_as_eager(op)
    }
    parts = (torch_draws, torch_layouts, torch_lists)
    return found | {op: fn for part in parts for op, fn in part.DECOMPOSITIONS.items()}


@contextmanager
def plain_tracing() -> Iterator[None]:
    """Attention as plain ops, and checks of linear algebra as ordinary nodes.

    Torch would choose a fused kernel for the first and thread a token through the second.
    """
    handle = _register_effectful_op("aten::_linalg_check_errors", None)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        handle.destroy()


# ---- tracing


def one_at_a_time() -> Any:
    """Torch's own lock: Dynamo and AOTAutograd keep state that all threads share."""
    return torch._dynamo.convert_frame.compile_lock


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """What fails is raised: no stack trace of torch's own beside it."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _capturing(dynamic: bool) -> Iterator[None]:
    patches = {
        "replay_side_effects": False,
        "side_effect_replay_policy": "silent",
        "specialize_int": True,
        "specialize_float": True,
        "assume_static_by_default": not dynamic,
        "automatic_dynamic_shapes": False,
        "allow_rnn": True,
    }
    known = {k: v for k, v in patches.items() if hasattr(torch._dynamo.config, k)}
    with (
        quiet("torch._subclasses.fake_tensor"),
        torch.no_grad(),
        _compiling_state_context(),
        torch._dynamo.config.patch(known),
        spared(),
        in_scans(),
        # equal sizes in the example are not promised to stay equal
        sizes_config.patch(use_duck_shape=False),  # pyright: ignore[reportAttributeAccessIssue]
        get_metrics_context(),
        dynamo_timed("fullgraph_capture"),
    ):
        yield


class _Yield(Exception):
    """Leaves the user's function once its graph has been given its inputs."""


class Traced:
    """A callable as Dynamo saw it: the graph, and what surrounds its one call."""

    def __init__(self, fn: Any, args: Sequence[Any], dynamic: bool) -> None:
        self.fn = fn
        self.root = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
        with _capturing(dynamic):
            self.output: CaptureOutput = fullgraph_capture(fn, tuple(args), {})
        if self.output.backend_input is None:
            raise StackError(f"{fn!r} does no work on tensors: there is nothing to compile")
        self.graph: GraphModule = self.output.backend_input.graph_module

    def _around(self, run: Callable[..., Any], args: Sequence[Any]) -> Any:
        scope = self.output.graph_capture_output.f_globals
        surround = self.output.forward_callable(compiled_fn=run, extra_globals=scope)
        return surround(*((self.root, *args) if self.root is not None else args))

    def inputs(self, args: Sequence[Any]) -> list[Any]:
        """What the graph is called with."""
        found: list[Any] = []

        def stop(*values: Any) -> Any:
            found.extend(values)
            raise _Yield

        with suppress(_Yield):
            self._around(stop, args)
        return found

    def result(self, args: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """What the user's function returns when its graph returns `outputs`."""
        return self._around(lambda *_: tuple(outputs), args)

    @property
    def holders(self) -> list[torch.fx.Node]:
        return [n for n in self.graph.graph.nodes if n.op == "placeholder"]


def functional_graph(traced: Traced) -> tuple[GraphModule, GraphSignature]:
    """The graph in ATen ops without mutation."""
    given = traced.output.backend_input
    assert given is not None
    fakes = []
    for node in traced.holders:
        value = node.meta["example_value"]
        node.meta["val"] = value
        fakes.append(value.detach() if isinstance(value, torch.Tensor) else value)
    context = TracingContext(given.fake_mode)
    context.tensor_to_context = given.tensor_to_context
    write_out(traced.graph)
    with torch.no_grad(), tracing(context), plain_tracing():
        graph, signature = aot_export_module(
            traced.graph, fakes, trace_joint=False, decompositions=decompositions()
        )
    assert isinstance(graph, GraphModule)
    return graph, signature


# ---- assembling


def capture(fn: Any, args: Sequence[Any], dynamic: bool = False) -> Captured:
    """Trace a module or function for example arguments."""
    args = _distinct(args)
    arguments = Arguments(fn, args)
    try:
        traced = Traced(_traceable(fn), args, dynamic)
    except TorchDynamoException as error:
        raise_explained(error, fn, args, {})
    graph, signature = functional_graph(traced)
    return _Assembly(fn, args, arguments, traced, graph, signature).captured()


def _traceable(fn: Any) -> Any:
    """Dynamo reads Python code: what has none of its own is called from a function that does."""
    if isinstance(fn, torch.nn.Module | FunctionType | MethodType):
        return fn
    return lambda *args: fn(*args)


def _distinct(args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments in which no tensor occurs twice: two inputs are two parameters."""
    seen: set[int] = set()

    def fresh(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) in seen:
                return value.detach().clone()
            seen.add(id(value))
        return value

    return pytree.tree_map(fresh, tuple(args))


class _Assembly:
    """Puts parameters in order: weights, then the arguments; results: the user's, then writes."""

    def __init__(
        self, fn: Any, args: tuple[Any, ...], arguments: Arguments, traced: Traced,
        graph: GraphModule, signature: GraphSignature,
    ) -> None:  # fmt: skip
        self.fn, self.args, self.arguments = fn, args, arguments
        self.traced, self.graph, self.signature = traced, graph, signature
        self.lifted = [traced.graph.get_parameter(n) for n in signature.parameters]
        self.lifted += [traced.graph.get_buffer(n) for n in signature.buffers]
        self.given = [*self.lifted, *traced.inputs(args)]
        self.holders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        if len(self.holders) != len(self.given):
            raise StackError(f"{len(self.given)} inputs were traced as {len(self.holders)}")

    def captured(self) -> Captured:
        self._place()
        imported = import_graph(self.graph, program_name(self.fn), self.param_names, self.order)
        self.func, bound = self._with_unused(imported)
        loose = [e for e in imported.sizes.values() if isinstance(e, Expr)]
        known = {lone_symbol(d) for p in self.func.params for d in p.shape}
        for size in loose:
            if lone_symbol(size) not in known:
                raise StackError(f"the size {size} comes from a number, not from a tensor's shape")
        call = Call(self.arguments, self.func, len(bound), imported.checks, imported.symbols)
        finish = Finish(
            call, self._template(imported), self._writes(imported, bound), imported.promises
        )
        device = device_of([*bound, *self.given, *self.arguments.tensors])
        check_results(self.graph.graph.output_node().args[0], device)  # pyright: ignore
        return TorchCaptured(
            func=self.func,
            text=lambda: self.graph.print_readable(print_output=False, colored=False),
            bound=bound,
            flatten=call,
            unflatten=finish,
            original=self.fn,
            args=self.args,
            notes=self._notes(imported),
            arguments=tuple(self.arguments.tensor_names),
            device=device,
        )

    def _place(self) -> None:
        """The order of placeholders: what is bound first, then arguments as they come."""
        leaf = {id(t): i for i, t in enumerate(self.arguments.tensors)}
        named = _weight_names(self.traced.root)
        self.leaf_of: dict[int, int] = {}
        self.param_names: dict[str, str] = {}
        bound: list[int] = []
        argument_names = self.arguments.tensor_names
        for i, (holder, value) in enumerate(zip(self.holders, self.given, strict=True)):
            if id(value) in leaf:
                self.leaf_of[i] = leaf[id(value)]
                self.param_names[holder.name] = argument_names[leaf[id(value)]]
            else:
                bound.append(i)
                source = self._source_name(i)
                self.param_names[holder.name] = named.get(id(value), source)
        rank = {id(w): n for n, w in enumerate(_weights(self.traced.root))}
        bound.sort(key=lambda i: rank.get(id(self.given[i]), len(rank)))
        self.order = [*bound, *sorted(self.leaf_of, key=self.leaf_of.__getitem__)]

    def _source_name(self, position: int) -> str:
        place = position - len(self.lifted)
        if place < 0:
            return (*self.signature.parameters, *self.signature.buffers)[position]
        return self.traced.holders[place].name.removeprefix("l_").strip("_")

    def _with_unused(self, imported: Imported) -> tuple[Func, list[torch.Tensor]]:
        """The function with a parameter for every tensor argument, used or not."""
        func = imported.func
        bound: list[torch.Tensor] = []
        own: dict[int, Node] = {}
        params: list[Node] = []
        for p, source in zip(func.params, imported.inputs, strict=True):
            if isinstance(source, int) and source in self.leaf_of:
                own[self.leaf_of[source]] = p
                continue
            params.append(p)
            bound.append(self.given[source] if isinstance(source, int) else source)  # pyright: ignore
        taken = {str(p.attrs["name"]) for p in func.params}
        counts: dict[str, int] = {}
        for i, (name, tensor) in enumerate(
            zip(self.arguments.tensor_names, self.arguments.tensors, strict=True)
        ):
            if i not in own:
                type_ = TensorType(dtype_of(tensor.dtype), tuple(tensor.shape))
                own[i] = param(unique_name(name, taken, counts), type_)
            params.append(own[i])
        body = Block(params, func.results, func.body.names, func.body.locs)
        return Func(func.name, body, func.level), bound

    # ---- results

    def _writes(self, imported: Imported, bound: list[torch.Tensor]) -> list[tuple[int, Any]]:
        """(result, where it goes): a bound tensor, or the number of an argument."""
        sig = self.signature
        targets = [*sig.buffers_to_mutate.values(), *sig.parameters_to_mutate.values()]
        places: list[Any] = [self.traced.graph.get_buffer(n) for n in targets]
        names = [n.name for n in self.holders]
        for holder in sig.user_inputs_to_mutate.values():
            position = names.index(holder)
            leaf = self.leaf_of.get(position)
            places.append(self.given[position] if leaf is None else leaf)
        numbers = _result_numbers(imported.outputs)
        return [(n, place) for n, place in zip(numbers, places) if n is not None]

    def _template(self, imported: Imported) -> Template:
        sig = self.signature
        skip = len(sig.buffers_to_mutate) + len(sig.parameters_to_mutate)
        skip += len(sig.user_inputs_to_mutate)
        outputs = imported.outputs[skip:]
        numbers = _result_numbers(imported.outputs)[skip:]
        marks = [torch.empty(0) for _ in outputs]
        shape = self.traced.result(self.args, marks)
        leaves, spec = pytree.tree_flatten(shape)
        place = {id(m): i for i, m in enumerate(marks)}
        argument = {id(t): i for i, t in enumerate(self.arguments.tensors)}
        parts: list[tuple[str, Any]] = []
        for leaf in leaves:
            if id(leaf) in place:
                number = numbers[place[id(leaf)]]
                value = outputs[place[id(leaf)]]
                parts.append(("fixed", value) if number is None else ("result", number))
            elif id(leaf) in argument:
                parts.append(("argument", argument[id(leaf)]))
            elif isinstance(leaf, torch.Tensor | bool | int | float | complex | str | None):
                parts.append(("fixed", leaf))
            else:
                raise StackError(
                    f"the function returns a {type(leaf).__name__}; register it as a pytree"
                    " (torch.utils._pytree.register_pytree_node) or return tensors"
                )
        return Template(spec, parts)

    def _notes(self, imported: Imported) -> Notes:
        notes = graph_notes(self.traced.output)
        if imported.why:
            rows = [f"{op}: {why}" for op, why in sorted(imported.why.items())]
            notes["fallbacks"] = "\n".join(rows)
        if imported.promises:
            notes["checked after a run"] = "\n".join(p.text for p in imported.promises)
        arguments = {self.holders[i].name for i in self.leaf_of}
        changed = [n for n in self.signature.user_inputs_to_mutate.values() if n not in arguments]
        written = [*self.signature.buffers_to_mutate.values(), *map(self.param_names.get, changed)]
        if written:
            notes["written buffers"] = "\n".join(map(str, written))
        if imported.checks:
            notes["checked indices"] = "\n".join(map(check_text, imported.checks))
        return notes


def _result_numbers(outputs: Sequence[Any]) -> list[int | None]:
    """For each output, its number among the tensors; None for what is no tensor."""
    numbers: list[int | None] = []
    count = 0
    for value in outputs:
        numbers.append(count if isinstance(value, Node) else None)
        count += isinstance(value, Node)
    return numbers


def _weights(root: Any) -> list[torch.Tensor]:
    if not isinstance(root, torch.nn.Module):
        return []
    return [*root.parameters(), *root.buffers()]


def _weight_names(root: Any) -> dict[int, str]:
    if not isinstance(root, torch.nn.Module):
        return {}
    pairs = [*root.named_parameters(), *root.named_buffers()]
    return {id(tensor): name for name, tensor in pairs}
