"""`torch.compile(model, backend="stack")`: compiles each Dynamo graph and its backward graph."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch.fx import GraphModule
from torch.fx import Node as FxNode

import stack.plugins as plugins
from stack.cpython import undisturbed
from stack.errors import StackError, UnsupportedOp
from stack.frameworks import torch_private as private
from stack.frontends.torch.capture.capture import program_name
from stack.frontends.torch.compile.aot_autograd import aot_compiled
from stack.frontends.torch.compile.complex_border import real_border
from stack.frontends.torch.compile.early_backward import EarlyBackward
from stack.frontends.torch.compile.graph_split import compiled_in_parts
from stack.frontends.torch.compile.identity_guards import guard_identity
from stack.frontends.torch.compile.inference_calls import compiled_by_mode
from stack.frontends.torch.compile.result_aliases import remade_by_place, traced_aliases
from stack.frontends.torch.compile.set_data import drop_own_memory
from stack.frontends.torch.compile.sparse_gradients import OpByOp, sparse_nodes
from stack.frontends.torch.compile.tangents import takes_tangents
from stack.frontends.torch.graphs.eager_runs import raise_refusals
from stack.frontends.torch.importer.border import Border
from stack.frontends.torch.importer.graph import Imported, import_graph
from stack.frontends.torch.importer.origins import source_line, variable_name
from stack.frontends.torch.program.argument_overlap import guarded
from stack.frontends.torch.program.compiled_graph import CUT_FOR, Graph, boxed
from stack.frontends.torch.program.fast_path import passed_on
from stack.frontends.torch.tensors.arrays import device_of
from stack.frontends.torch.tensors.precision import guard_precision
from stack.frontends.torch.tracing.dynamo import write_out
from stack.frontends.torch.tracing.functional import decomposition, decompositions, plain_tracing
from stack.frontends.torch.tracing.layouts import lay_out_as_eager
from stack.frontends.torch.tracing.notes import Notes, decompiled, guards_text
from stack.frontends.torch.tracing.recorder import is_own, recorded
from stack.frontends.torch.training.delayed_gradients import Late, is_late, repeats, takes_gradients
from stack.frontends.torch.training.joint_graph import partition_fn
from stack.frontends.torch.training.saved_tensors import save_old_values
from stack.phases import phase
from stack.run.compile import default_backend, warm
from stack.run.frontend import Captured
from stack.run.options import balance_of

# The newest graphs, oldest first.
GRAPHS: deque[Any] = deque(maxlen=512)


def runs() -> list[Any]:
    """Returns the records of the newest graphs, in order."""
    return [run for graph in GRAPHS for run in graph.runs.values()]


# Notes of graphs whose frame Dynamo has not finished yet.
_PENDING: list[Notes] = []


def _note_bytecode(code: Any, new_code: Any) -> Any:
    """Dynamo hook: attaches a frame's new bytecode to the notes of graphs compiled just before."""
    for notes in _PENDING:
        notes["decompiled"] = lambda: decompiled(new_code)
    _PENDING.clear()


private.on_bytecode(_note_bytecode)


@undisturbed
def compile_graph(
    gm: GraphModule, example_inputs: Sequence[Any], options: dict[str, Any],
    made: Any = GRAPHS, fn: Any = None, target: str = "",
) -> Any:  # fmt: skip
    """Compile one Dynamo graph, and its backward graph if gradients are needed.

    Args:
        made: list that compiled graphs are appended to.
        fn: the user's callable, if it is exactly this one graph. Its forward pass then saves
            only inputs for the backward pass, which recomputes the rest. Default: one of several
            graphs; a cost model decides which values the forward pass saves.
        target: name of the program in the record.
    """
    drop_own_memory(gm)
    _refuse_other_memory(gm, fn)
    guard_identity()
    if takes_tangents():
        return gm

    device = _device(gm, example_inputs)

    def whole(gm: GraphModule, examples: Sequence[Any]) -> Any:
        return _compiled(gm, examples, device, options, made, fn, target)

    strict = options.get("strict", False)
    return compiled_by_mode(
        gm, lambda gm: compiled_in_parts(gm, example_inputs, device, whole, made, target, strict)
    )


def _compiled(
    gm: GraphModule, example_inputs: Sequence[Any], device: str, options: dict[str, Any],
    made: Any, fn: Any, target: str,
) -> Any:  # fmt: skip
    guard_precision(gm)
    if device == "cpu":
        raise_refusals(gm, example_inputs)
    lay_out_as_eager(gm, example_inputs)
    write_out(gm)
    warm(options.get("backend") or default_backend(device), options)
    maker = _Maker(gm, options, device, made, fn, target)
    balance = _balance(options, device)
    whole = fn is not None
    compiler = partial(
        aot_compiled,
        fw_compiler=maker.forward,
        bw_compiler=maker.backward,
        inference_compiler=maker.inference,
        decompositions=decompositions(cut=not whole, split=not whole and balance > 0),
        partition_fn=partial(
            maker.early.cut,
            partition_fn(
                0.0 if whole else balance,
                whole,
                maker.param_names,
                maker.target_of("joint"),
                [i for i, x in enumerate(example_inputs) if getattr(x, "is_leaf", False)],
            ),
        ),
        keep_inference_input_mutations=False,
    )
    has_gradients = takes_gradients(gm)
    if not has_gradients or (whole and is_late(gm, example_inputs)):
        without = torch.no_grad() if has_gradients else nullcontext()
        with phase("trace"), plain_tracing(), without:
            found = recorded(gm, decomposition)
            if found is not None and is_own(found):
                if not has_gradients:
                    return maker.called(found.graph)
                if repeats(found.graph):
                    return maker.called_late(found.graph, compiler)
    with phase("trace"), plain_tracing(), remade_by_place(gm, example_inputs):
        call = guarded(compiler(gm, example_inputs), gm, example_inputs, maker.inputs)
        lone = maker.lone
        count = None if lone is None else passed_on(gm, example_inputs, lone.shortcut)
        return call if lone is None or count is None else lone.instead_of(call, count)


def _refuse_other_memory(gm: GraphModule, fn: Any) -> None:
    """Raise UnsupportedOp if the program replaces the memory of an argument (`Tensor.set_`).

    The IR returns values only and cannot express this.
    """
    found = gm.graph.find_nodes(op="call_function", target=torch.Tensor.set_)
    if found:
        names = [_readable(n.args[0], _argument_names(fn)) for n in found]  # pyright: ignore[reportArgumentType]
        rows = [(f"`{name}.data = `", source_line(n)) for name, n in zip(names, found, strict=True)]
        raise UnsupportedOp(rows, "write into the memory that it has: `x.copy_(...)`")


def _device(gm: GraphModule, example_inputs: Sequence[Any]) -> str:
    """Returns the device of a graph's arguments; without arguments, of the tensors it creates."""
    if any(isinstance(x, torch.Tensor) for x in example_inputs):
        return device_of(example_inputs)
    return device_of(n.meta.get("example_value") for n in gm.graph.nodes)


def _balance(options: dict[str, Any], device: str) -> float:
    """Returns the flops that take as long as one byte of traffic; 0 if kernels cannot stream."""
    name = options.get(CUT_FOR) or options.get("backend") or default_backend(device)
    if name == "interpreter" or options.get("passes", "default") != "default":
        return 0.0
    return balance_of(plugins.load("stack.backends", name), {"device": device, **options})


class _Maker:
    """Compiles the ATen graphs of one Dynamo graph."""

    def __init__(
        self, gm: GraphModule, options: dict[str, Any], device: str, made: Any, fn: Any, target: str
    ) -> None:
        self.device = device
        self.made = made
        self.number = sum(not g.target.endswith("backward") for g in made)
        self.options = options
        self.gm = gm
        self.fn, self.target = fn, target
        holders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        arguments = _argument_names(fn)
        self.names = [_readable(n, arguments) for n in holders]
        self.ranks = [_rank(n, arguments) for n in holders]
        self.notes = _break_notes(gm)
        self.inputs = [i for i, n in enumerate(holders) if not _is_weight(_source_name(n))]
        self.lone: Graph | None = None  # the graph of a program that consists of this graph only
        self.late: Late | None = None
        self.early = EarlyBackward()

    def forward(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        save_old_values(graph)
        again = None if self.late is None else self.late.again(graph)
        return again or boxed(self._make(graph, "forward", self._start_backward))

    def _start_backward(self) -> None:
        self.early.start(lambda graph, leave: self._make(graph, "backward", leave))

    def backward(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        sparse = sparse_nodes(graph)
        if not sparse:
            return boxed(self._make(graph, "backward"))
        strict = self.options.get("strict", False)
        made = OpByOp(graph, sparse, self.target_of("backward"), strict)
        self.made.append(made)
        return make_boxed_func(made)

    def inference(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        self.lone = self._make(graph, "inference")
        return boxed(self.lone)

    def called(self, graph: GraphModule) -> Callable[..., Any]:
        """Compiles an ATen graph for calls without gradients and without AOTAutograd's wrappers."""
        made = self._make(graph, "inference")

        def call(*args: Any) -> Any:
            with torch.no_grad():
                return made([*args])

        bare = torch.compiler.disable(call, reason="it is a compiled graph")
        return made.instead_of(bare, len(made.border.outputs))

    def called_late(self, graph: GraphModule, compiler: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles an ATen graph; `compiler` (AOTAutograd) takes over once gradients are needed."""
        self.late = Late(self.gm, self._make(graph, "forward"), compiler)
        return torch.compiler.disable(self.late.__call__, reason="it is a compiled graph")

    @phase("import")
    def _make(
        self, graph: GraphModule, role: str, meanwhile: Callable[[], object] | None = None
    ) -> Graph:
        real_border(graph)
        border = Border(graph.graph, None if role == "backward" else traced_aliases())
        given = self._given(graph)
        imported = import_graph(
            graph,
            self._name(role),
            self.param_names(graph),
            self._order(graph, given),
            trusted=role == "backward",
            border=border,
        )
        notes = Notes(self.notes)
        if role != "backward":
            _PENDING.append(notes)
        notes |= imported.notes()
        captured = Captured(
            func=imported.func, bound=(), flatten=lambda *a: list(a), unflatten=lambda r: r,
            original=_not_callable, args=(), notes=notes, device=self.device,
            make_text=lambda: graph.print_readable(print_output=False, colored=False),
            is_lent=role != "backward",
            arguments=tuple(self.names[i] for i in given.values() if self.ranks[i]),
            weights=self._staying(graph, role, imported, notes),
            known=self.early.known if role == "backward" else {},
            meanwhile=meanwhile,
        )  # fmt: skip
        target = self.target_of(role)
        return Graph(graph, border, imported, captured, self.options, target, self.made)

    def _staying(
        self, graph: GraphModule, role: str, imported: Imported, notes: Notes
    ) -> tuple[str, ...]:
        """Returns the names of weights that do not change between calls, which may be frozen.

        Freezing computes what depends only on them once. If the user asked for `freeze`, a note
        lists the other weights and the reason.
        """
        given = self._given(graph)
        holders = graph.graph.find_nodes(op="placeholder")
        is_weight = [n in given and given[n] not in self.inputs for n in holders]
        written = set(traced_aliases().written)
        names = {
            source: str(p.attrs["name"])
            for p, source in zip(imported.func.params, imported.inputs, strict=True)
            if (is_weight[source] if isinstance(source, int) else isinstance(source, torch.Tensor))
        }
        if role != "inference":
            why = "gradients are asked for"
            names, changing = {}, list(names.values())
        else:
            why = "the program writes to them"
            changing = [name for i, name in names.items() if i in written]
        if changing and self.options.get("freeze"):
            notes["not frozen"] = f"{', '.join(changing)}: {why}"
        return tuple(name for i, name in names.items() if i not in written)

    def _name(self, role: str) -> str:
        if self.fn is None:
            return f"graph{self.number}_{role}"
        name = program_name(self.fn)
        return f"{name}_backward" if role == "backward" else name

    def target_of(self, role: str) -> str:
        """Returns the name of a graph in its record."""
        if self.fn is None:
            return f"graph {self.number} {role}"
        named = role in ("backward", "joint")
        return f"{self.target} {role}".strip() if named else self.target

    def param_names(self, graph: GraphModule) -> dict[str, str]:
        """Returns readable names for placeholders."""
        return {n.name: self.names[i] for n, i in self._given(graph).items()}

    def _given(self, graph: GraphModule) -> dict[FxNode, int]:
        """Maps placeholders of an ATen graph to positions of the same inputs of Dynamo's graph."""
        found: dict[FxNode, int] = {}
        for node in graph.graph.find_nodes(op="placeholder"):
            position = getattr(node.meta.get("desc"), "idx", None)
            if position is None and node.name.startswith("primals_"):
                position = int(node.name.removeprefix("primals_")) - 1
            if isinstance(position, int) and position < len(self.names):
                found[node] = position
        return found

    def _order(self, graph: GraphModule, given: dict[FxNode, int]) -> list[int]:
        """Returns positions of placeholders: weights and bound tensors first, then arguments."""
        holders = graph.graph.find_nodes(op="placeholder")
        ranks = [self.ranks[given[n]] if n in given else 0 for n in holders]
        return sorted(range(len(holders)), key=ranks.__getitem__)


def _argument_names(fn: Any) -> list[str]:
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters
    except (TypeError, ValueError):
        return []
    return list(parameters)


_ARGUMENT = re.compile(r"L\['(args|kwargs)'\]\['?(\w+)'?\]")


def _in_users_words(source: str, arguments: Sequence[str]) -> str:
    """Rewrites a source name past the function that calls a module: `L['args'][0]` to `L['x']`."""
    match = _ARGUMENT.match(source)
    if match is None or match[1] in arguments:
        return source
    name = match[2]
    if match[1] == "args":
        name = arguments[int(name)] if int(name) < len(arguments) else f"args.{name}"
    return f"L['{name}']{source[match.end() :]}"


def _rank(holder: FxNode, arguments: Sequence[str]) -> int:
    """Returns the number, from 1, of the user's argument that an input is part of; else 0."""
    name = _in_users_words(_source_name(holder), arguments)
    head = name.removeprefix("L['").partition("']")[0] if name.startswith("L['") else ""
    if not head or _is_weight(name) or not _is_input(holder):
        return 0
    return arguments.index(head) + 1 if head in arguments else len(arguments) + 1


def _is_weight(source: str) -> bool:
    return any(table in source for table in ("_parameters", "_buffers", "_modules"))


def _is_input(holder: FxNode) -> bool:
    source: Any = getattr(holder.meta.get("grapharg"), "source", None)
    while hasattr(source, "base"):
        source = source.base
    return bool(getattr(source, "is_input", False))


def _source_name(holder: FxNode) -> str:
    source = getattr(holder.meta.get("grapharg"), "source", None)
    try:
        name = source.name if source is not None else ""
        return str(name() if callable(name) else name)
    except NotImplementedError:
        return ""


def _readable(holder: FxNode, arguments: Sequence[str]) -> str:
    """Returns a readable name: `attn.wq.weight` for `L['self']._modules['attn']...`."""
    name = _in_users_words(_source_name(holder), arguments)
    inner = variable_name(name) if name else ""
    return inner or holder.name.removeprefix("L_").removeprefix("l_").strip("_")


def _break_notes(gm: GraphModule) -> Notes:
    notes = Notes()
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is not None and getattr(reason, "graph_break", False):
        where = [f"{f.filename}:{f.lineno}" for f in getattr(reason, "user_stack", ())]
        notes["graph break"] = "\n".join([str(reason.reason), *where[-1:]])
    context = private.tracing_context()
    if context is not None:
        guards = context.guards_context.dynamo_guards
        notes["guards"] = lambda: guards_text(guards)
    return notes


def _not_callable(*_: Any) -> Any:
    raise StackError("a graph inside of torch.compile has no callable of its own")
