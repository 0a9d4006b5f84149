"""Behind `torch.compile(model, backend="stack")`: each graph, and its derivative, is compiled."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import register_bytecode_hook
from torch._guards import TracingContext
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.utils._python_dispatch import _disable_current_modes

import stack.plugins as plugins
from stack.collector import held_back
from stack.errors import StackError
from stack.frontends.dynamo import FRONTEND
from stack.frontends.dynamo_capture import decompositions, plain_tracing
from stack.frontends.dynamo_joint import partition_fn
from stack.frontends.dynamo_notes import Notes, decompiled, guards_text
from stack.frontends.fx_border import Border, Replay
from stack.frontends.fx_complex import real_border
from stack.frontends.fx_import import Imported, import_graph
from stack.frontends.fx_lines import variable_name
from stack.frontends.fx_sparse import OpByOp, sparse_nodes
from stack.frontends.torch_aliases import remade_by_place, traced_aliases
from stack.frontends.torch_arrays import TORCH_DTYPE, check_results, device_of
from stack.frontends.torch_calls import (
    TorchCaptured,
    check_text,
    kept_promises,
    program_name,
)
from stack.frontends.torch_index import Checks
from stack.frontends.torch_overlap import guarded
from stack.frontends.torch_precision import guard_precision
from stack.frontends.torch_sizes import lone_symbol
from stack.frontends.torch_written import write_out
from stack.ir.interpreter import interpret
from stack.ir.node import Block, Func, Node, by_distance
from stack.ir.types import BF16, BOOL
from stack.phases import phase
from stack.run.compile import default_backend, warm
from stack.run.frontend import RECORD
from stack.run.graph import CompiledGraph
from stack.run.record import recorded
from stack.run.targets import balance_of

# The newest graphs, oldest first.
GRAPHS: deque[Any] = deque(maxlen=512)

# Notes of graphs whose frame Dynamo has not finished yet.
_PENDING: list[Notes] = []


def _note_bytecode(code: Any, new_code: Any) -> Any:
    """Dynamo made new bytecode for a frame: it belongs to the graphs compiled just before."""
    for notes in _PENDING:
        notes["decompiled"] = lambda: decompiled(new_code)
    _PENDING.clear()


register_bytecode_hook(_note_bytecode)

# Whether graphs are compiled for the arguments of a call, and the call ends there.
_PREPARING: ContextVar[bool] = ContextVar("preparing", default=False)


class Prepared(Exception):
    """Ends a call whose graph is compiled now: nothing has run."""


@contextmanager
def preparing() -> Iterator[None]:
    """Calls of compiled graphs end by `Prepared` in place of running."""
    token = _PREPARING.set(True)
    try:
        yield
    finally:
        _PREPARING.reset(token)


# Options that are ours; the others go to the backend.
_OWN = ("backend", "passes", "strict")
_CUT_FOR = "cut_for"  # the backend that training graphs are cut for, where another one runs them


def compile_graph(
    gm: GraphModule, example_inputs: Sequence[Any], options: dict[str, Any],
    made: Any = GRAPHS, fn: Any = None, target: str = "",
) -> Any:  # fmt: skip
    """Compile one Dynamo graph; its backward graph too, where gradients are asked for.

    Args:
        made: where compiled graphs are entered.
        fn: the user's callable that is this one graph. Its forward pass stays what it computes:
            the backward pass is given inputs only. Default: one of several graphs, and what the
            forward pass keeps is weighed.
        target: what the record calls the program.
    """
    device = _device(gm, example_inputs)
    guard_precision(gm)
    write_out(gm)
    warm(options.get("backend") or default_backend(device))
    maker = _Maker(gm, options, device, made, fn, target)
    balance = _balance(options, device)
    whole = fn is not None
    compiler = aot_autograd(
        fw_compiler=maker.forward,
        bw_compiler=maker.backward,
        inference_compiler=maker.inference,
        decompositions=decompositions(cut=not whole, split=not whole and balance > 0),
        partition_fn=partition_fn(
            0.0 if whole else balance, whole, maker.param_names, maker.target_of("joint")
        ),
        keep_inference_input_mutations=False,
    )
    with phase("trace"), plain_tracing(), remade_by_place(example_inputs), held_back():
        return guarded(compiler(gm, example_inputs), gm, example_inputs, maker.inputs)


def _device(gm: GraphModule, example_inputs: Sequence[Any]) -> str:
    """Where a graph runs: where its arguments are, or what it makes where it takes none."""
    if any(isinstance(x, torch.Tensor) for x in example_inputs):
        return device_of(example_inputs)
    return device_of(n.meta.get("example_value") for n in gm.graph.nodes)


def _balance(options: dict[str, Any], device: str) -> float:
    """How many flops cost as much as a byte, where the backend has streams; else 0."""
    name = options.get(_CUT_FOR) or options.get("backend") or default_backend(device)
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

    def forward(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        return self._make(graph, "forward")

    def backward(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        sparse = sparse_nodes(graph)
        if not sparse:
            return self._make(graph, "backward")
        strict = self.options.get("strict", False)
        made = OpByOp(graph, sparse, self.target_of("backward"), strict)
        self.made.append(made)
        return make_boxed_func(made)

    def inference(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        return self._make(graph, "inference")

    @phase("import")
    def _make(self, graph: GraphModule, role: str) -> Callable[..., Any]:
        check_results(graph.graph.output_node().args[0], self.device)  # pyright: ignore
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
        if imported.why:
            notes["fallbacks"] = "\n".join(f"{k}: {v}" for k, v in sorted(imported.why.items()))
        if imported.checks:
            notes["checked indices"] = "\n".join(map(check_text, imported.checks))
        if imported.promises:
            notes["checked after a run"] = "\n".join(p.text for p in imported.promises)
        captured = TorchCaptured(
            func=imported.func, bound=(), flatten=lambda *a: list(a), unflatten=lambda r: r,
            original=_not_callable, args=(), notes=notes, device=self.device,
            text=lambda: graph.print_readable(print_output=False, colored=False),
            arguments=tuple(self.names[i] for i in given.values() if self.ranks[i]),
            weights=self._staying(graph, role, imported, notes),
        )  # fmt: skip
        target = self.target_of(role)
        made = _Graph(graph, border, imported, captured, self.options, target, self.made)
        return _boxed(made)

    def _staying(
        self, graph: GraphModule, role: str, imported: Imported, notes: Notes
    ) -> tuple[str, ...]:
        """Names of the weights that stay from call to call; notes why others do not."""
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
        """What the record of a graph calls it."""
        if self.fn is None:
            return f"graph {self.number} {role}"
        named = role in ("backward", "joint")
        return f"{self.target} {role}".strip() if named else self.target

    def param_names(self, graph: GraphModule) -> dict[str, str]:
        """Readable names for placeholders."""
        return {n.name: self.names[i] for n, i in self._given(graph).items()}

    def _given(self, graph: GraphModule) -> dict[FxNode, int]:
        """Which of Dynamo's inputs AOT's `primals_3` is, where it says so."""
        found: dict[FxNode, int] = {}
        for node in graph.graph.find_nodes(op="placeholder"):
            position = getattr(node.meta.get("desc"), "idx", None)
            if position is None and node.name.startswith("primals_"):
                position = int(node.name.removeprefix("primals_")) - 1
            if isinstance(position, int) and position < len(self.names):
                found[node] = position
        return found

    def _order(self, graph: GraphModule, given: dict[FxNode, int]) -> list[int]:
        """Weights and what else a program is bound to, then its arguments in their order."""
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
    """A source past the function that calls a module: `L['x']` for `L['args'][0]`."""
    match = _ARGUMENT.match(source)
    if match is None or match[1] in arguments:
        return source
    name = match[2]
    if match[1] == "args":
        name = arguments[int(name)] if int(name) < len(arguments) else f"args.{name}"
    return f"L['{name}']{source[match.end() :]}"


def _rank(holder: FxNode, arguments: Sequence[str]) -> int:
    """Which argument of the user's an input is part of, from 1; 0 for what comes from elsewhere."""
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
    """`attn.wq.weight` for a placeholder that stands for `L['self']._modules['attn']...`."""
    name = _in_users_words(_source_name(holder), arguments)
    inner = variable_name(name) if name else ""
    return inner or holder.name.removeprefix("L_").removeprefix("l_").strip("_")


def _break_notes(gm: GraphModule) -> Notes:
    notes = Notes()
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is not None and getattr(reason, "graph_break", False):
        where = [f"{f.filename}:{f.lineno}" for f in getattr(reason, "user_stack", ())]
        notes["graph break"] = "\n".join([str(reason.reason), *where[-1:]])
    context = TracingContext.try_get()
    if context is not None:
        guards = context.guards_context.dynamo_guards
        notes["guards"] = lambda: guards_text(guards)
    return notes


def _boxed(made: _Graph) -> Callable[[list[Any]], list[Any]]:
    """What AOTAutograd gives its list of arguments itself."""

    def call(args: list[Any]) -> list[Any]:
        return made(args)

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


class _Graph:
    """One compiled ATen graph, called with what AOTAutograd passes: a list that it may empty."""

    def __init__(
        self, graph: GraphModule, border: Border, imported: Imported, captured: TorchCaptured,
        options: dict[str, Any], target: str, made: Any,
    ) -> None:  # fmt: skip
        self.border, self.imported, self.captured = border, imported, captured
        self.options, self.target, self.made = options, target, made
        self.by_size: dict[tuple[tuple[str, int], ...], Any] = {}
        holders = graph.graph.find_nodes(op="placeholder")
        self.loose = _loose_sizes(imported)
        # whether the parameters are what a call is given
        self.is_plain = imported.inputs == [*range(len(holders))] and not any(imported.orders)
        views = [i for i in imported.inputs if isinstance(i, FxNode)]
        self.views = Replay(views, holders) if views else None
        func = imported.func
        self.places = {p: i for i, p in enumerate(func.params)}
        self.passed = {o: self.places[o] for o in imported.outputs if o in self.places}
        self.spent = border.unread()
        checks = [(self.places[c.param], c) for c in imported.checks if c.param in self.places]
        self.check_indices = Checks(checks, func.params)
        # what is computed once, and is no input as it came
        promises = func.results[len(imported.outputs) :]
        fresh = dict.fromkeys(o for o in imported.outputs if o not in self.places)
        results = [*by_distance(fresh), *promises]
        self.numbers = {r: i for i, r in enumerate(results)}
        self.direct = self._direct()
        body = Block(func.params, results, func.body.names, func.body.locs)
        self.func = Func(func.name, body, func.level)
        if not self.loose and self.func.results:
            self._compiled({})

    def __call__(self, args: list[Any]) -> list[Any]:
        arrays = self._arrays(args)
        sizes = {n: int(args[i]) for n, i in self.loose.items()} if self.loose else {}
        if _PREPARING.get():
            if self.func.results:
                self._compiled(sizes).prepare(arrays)
            raise Prepared
        self.check_indices(arrays)
        passed = {output: arrays[place] for output, place in self.passed.items()}
        for place in self.spent:
            args[place] = None  # the program lets go of what nobody else holds
        found = self._compiled(sizes).call_flat(arrays) if self.func.results else ()
        if self.direct is not None:
            return [found[number] for number in self.direct]
        return self.border.results(args, self._fresh(found, passed))

    def _direct(self) -> list[int] | None:
        """For each result its number among those computed, where they are passed on as they are."""
        outputs, straight = self.imported.outputs, self.border.straight()
        is_own = len(set(outputs)) == len(outputs) and not any(o in self.places for o in outputs)
        if straight is None or self.imported.promises or not is_own:
            return None
        return [self.numbers[outputs[i]] for i in straight]

    def _arrays(self, args: Sequence[Any]) -> list[Any]:
        """A tensor for each parameter, its axes in the order of memory."""
        if self.is_plain:
            return [*args]
        views = iter(self.views(args) if self.views is not None else ())
        arrays: list[Any] = []
        for source, order in zip(self.imported.inputs, self.imported.orders, strict=True):
            if isinstance(source, int):
                arrays.append(args[source].permute(order) if order else args[source])
            else:
                arrays.append(source if isinstance(source, torch.Tensor) else next(views))
        return arrays

    def _fresh(self, found: Sequence[Any], passed: Mapping[Node, Any]) -> list[torch.Tensor]:
        """The fresh values of the border, each in memory of its own."""
        found = kept_promises(found, self.imported.promises)
        taken: set[Node] = set()
        fresh: list[torch.Tensor] = []
        for output in self.imported.outputs:
            tensor = passed[output] if output in passed else found[self.numbers[output]]
            if output in passed or output in taken:
                tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
            taken.add(output)
            fresh.append(tensor)
        return fresh

    def _compiled(self, sizes: dict[str, int]) -> Any:
        key = tuple(sorted(sizes.items())) if sizes else ()
        if key not in self.by_size:
            func = self.func.bind(sizes) if sizes else self.func
            self.by_size[key] = self._compile(func)
        return self.by_size[key]

    def _compile(self, func: Func) -> Any:
        captured = self.captured.with_func(func)
        own = {k: self.options[k] for k in _OWN if k in self.options}
        if own.get("backend") == "interpreter":
            graph: Any = Interpreted(captured, self.target)
        elif own.get("backend") == RECORD:
            graph = Recorded(captured, self.target)
        else:
            rest = {k: v for k, v in self.options.items() if k not in (*_OWN, _CUT_FOR)}
            # torch traces around us with tensors without memory: a backend makes real ones
            with _disable_current_modes():
                graph = CompiledGraph(captured, FRONTEND, options=rest, label=self.target, **own)
        self.made.append(graph)
        return graph


def _loose_sizes(imported: Imported) -> dict[str, int]:
    """Size arguments that no parameter's shape tells: symbol to position."""
    told = {lone_symbol(d) for p in imported.func.params for d in p.shape}
    found: dict[str, int] = {}
    for place, size in imported.sizes.items():
        name = lone_symbol(size)
        if name is not None and name not in told:
            found[name] = place
    return found


def _not_callable(*_: Any) -> Any:
    raise StackError("a graph inside of torch.compile has no callable of its own")


class Interpreted:
    """A graph in the reference interpreter: `options={"backend": "interpreter"}`."""

    def __init__(self, captured: TorchCaptured, target: str) -> None:
        self.func = captured.func
        self.target = target
        self.runs = {(): recorded(captured, "torch", target, "interpreter")}

    def prepare(self, arrays: Sequence[torch.Tensor]) -> None:
        """Nothing is compiled."""

    def call_flat(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        ready = [self._array(a, p) for a, p in zip(arrays, self.func.params, strict=True)]
        results = interpret(self.func, *ready)
        if not isinstance(results, tuple):
            results = (results,)
        return [self._tensor(r, n) for r, n in zip(results, self.func.results, strict=True)]

    def _array(self, tensor: torch.Tensor, p: Node) -> Any:
        held = tensor.detach().float() if p.dtype is BF16 else tensor.detach()
        return held.resolve_conj().numpy()

    def _tensor(self, array: Any, node: Node) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(TORCH_DTYPE[node.dtype])


class Recorded(Interpreted):
    """A graph that is imported only, for its record: a call gives zeros, and keeps promises."""

    def __init__(self, captured: TorchCaptured, target: str) -> None:
        super().__init__(captured, target)
        self.device = captured.device

    def call_flat(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self._placeholder(r) for r in self.func.results]

    def _placeholder(self, node: Node) -> torch.Tensor:
        shape = [int(str(size)) for size in node.shape]
        dtype = TORCH_DTYPE[node.dtype]
        one = torch.full((), node.dtype is BOOL, dtype=dtype, device=self.device)
        return one.expand(shape)  # what is saved for the way back may be larger than memory
