"""Behind `torch.compile(model, backend="stack")`: each graph, and its derivative, is compiled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import register_bytecode_hook
from torch._guards import TracingContext
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from stack.errors import StackError
from stack.frontends.dynamo import FRONTEND
from stack.frontends.dynamo_capture import decompositions, plain_tracing
from stack.frontends.dynamo_notes import Notes, decompiled, guards_text
from stack.frontends.dynamo_partition import partition_fn
from stack.frontends.fx_import import Imported, import_graph, variable_name
from stack.frontends.torch_arrays import TORCH_DTYPE, check_results, device_of
from stack.frontends.torch_calls import TorchCaptured, asked_index, kept_promises, lone_symbol
from stack.frontends.torch_index import into_range, may_wait
from stack.ir.dim import Dim, Expr, substitute
from stack.ir.interpreter import bind_shapes, interpret
from stack.ir.node import Block, Func, Node
from stack.ir.types import BF16
from stack.run import plugins
from stack.run.collector import held_back
from stack.run.compile import compile_captured, default_backend, warm
from stack.run.frontend import RECORD
from stack.run.record import recorded

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

# Options that are ours; the others go to the backend.
_OWN = ("backend", "passes", "strict")
_AHEAD = "cuda"  # where work goes on while indices are asked for: wrong ones must do no harm
_CUT_FOR = "cut_for"  # the backend that training graphs are cut for, where another one runs them


def compile_graph(gm: GraphModule, example_inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """Compile one Dynamo graph; its backward graph too, where gradients are asked for."""
    device = device_of(example_inputs)
    warm(options.get("backend") or default_backend(device))
    maker = _Maker(gm, options, device)
    balance = _balance(options, device)
    compiler = aot_autograd(
        fw_compiler=maker.forward,
        bw_compiler=maker.backward,
        inference_compiler=maker.inference,
        decompositions=decompositions(cut=True, split=balance > 0),
        partition_fn=partition_fn(balance),
        keep_inference_input_mutations=False,
    )
    with plain_tracing(), held_back():
        return compiler(gm, example_inputs)


def _balance(options: dict[str, Any], device: str) -> float:
    """How many flops cost as much as a byte, where the backend has streams; else 0."""
    name = options.get(_CUT_FOR) or options.get("backend") or default_backend(device)
    if name == "interpreter" or options.get("passes", "default") != "default":
        return 0.0
    return plugins.load("stack.backends", name).balance


class _Maker:
    """Compiles the ATen graphs of one Dynamo graph."""

    def __init__(self, gm: GraphModule, options: dict[str, Any], device: str) -> None:
        self.device = device
        self.number = sum(not g.target.endswith("backward") for g in GRAPHS)
        self.options = options
        self.gm = gm
        holders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.names = [_readable(n) for n in holders]
        self.notes = _break_notes(gm)

    def forward(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        return self._make(graph, "forward")

    def backward(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        return self._make(graph, "backward")

    def inference(self, graph: GraphModule, _: Any) -> Callable[..., Any]:
        return self._make(graph, "inference")

    def _make(self, graph: GraphModule, role: str) -> Callable[..., Any]:
        check_results(graph.graph.output_node().args[0], self.device)  # pyright: ignore
        imported = import_graph(
            graph,
            f"graph{self.number}_{role}",
            self._param_names(graph),
            trusted=role == "backward",
        )
        notes = Notes(self.notes)
        if role != "backward":
            _PENDING.append(notes)
        if imported.why:
            notes["fallbacks"] = "\n".join(f"{k}: {v}" for k, v in sorted(imported.why.items()))
        text = lambda: graph.print_readable(print_output=False, colored=False)
        target = f"graph {self.number} {role}"
        made = _Graph(imported, text, notes, self.options, target, self.device)
        return make_boxed_func(made)

    def _param_names(self, graph: GraphModule) -> dict[str, str]:
        """Names of the user's program for AOT's `primals_3`, where it says which input that is."""
        names: dict[str, str] = {}
        for node in graph.graph.nodes:
            if node.op != "placeholder":
                continue
            position = getattr(node.meta.get("desc"), "idx", None)
            if position is None and node.name.startswith("primals_"):
                position = int(node.name.removeprefix("primals_")) - 1
            if isinstance(position, int) and position < len(self.names):
                names[node.name] = self.names[position]
        return names


def _readable(holder: torch.fx.Node) -> str:
    """`attn.wq.weight` for a placeholder that stands for `L['self']._modules['attn']...`."""
    argument = holder.meta.get("grapharg")
    source = getattr(argument, "source", None) if argument is not None else None
    try:
        name = source.name if source is not None else ""
        name = name() if callable(name) else name
    except NotImplementedError:
        name = ""
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


class _Graph:
    """One compiled ATen graph, called with what AOTAutograd passes."""

    def __init__(
        self, imported: Imported, text: Callable[[], str], notes: Notes, options: dict[str, Any],
        target: str, device: str,
    ) -> None:  # fmt: skip
        self.imported = imported
        self.device = device
        self.text, self.notes, self.options, self.target = text, notes, options, target
        params = dict(zip(imported.func.params, imported.inputs, strict=True))
        self.checks = [(params[c.param], c) for c in imported.checks if c.param in params]
        self.by_size: dict[tuple[tuple[str, int], ...], Any] = {}
        self.loose = _loose_sizes(imported)
        # a parameter that is kept for the backward pass is the tensor that came in
        self.given = {p: i for i, p in enumerate(imported.func.params)}
        results = [r for r in imported.func.results if r not in self.given]
        whole = imported.func
        body = Block(whole.params, results, whole.body.names, whole.body.locs)
        self.func = Func(whole.name, body, whole.level)
        self.results = self.func.results
        wanted = [c for place, c in self.checks if isinstance(place, int)]
        self.is_late = device.startswith(_AHEAD) and bool(wanted) and may_wait(wanted)
        if self.is_late:
            self.func = into_range(self.func, wanted)
        if not self.loose and self.results:
            self._compiled({})

    def __call__(self, *args: Any) -> list[Any]:
        arrays = [a if isinstance(a, torch.Tensor) else args[a] for a in self.imported.inputs]
        judges = [
            asked_index(check, args[place], arrays, self.imported.func.params)
            for place, check in self.checks
            if isinstance(place, int)
        ]
        if not self.is_late:
            _judge(judges)
        sizes = {name: int(args[place]) for name, place in self.loose.items()}
        flat = self._compiled(sizes).call_flat(arrays) if self.results else ()
        if self.is_late:
            _judge(judges)
        found = iter(kept_promises(flat, self.imported.promises))
        results: list[Any] = []
        for output in self.imported.outputs:
            if output in self.given:
                results.append(arrays[self.given[output]])
            else:
                made = isinstance(output, Node)
                results.append(next(found) if made else self._number(output, args))
        return results

    def _number(self, value: Any, args: Sequence[Any]) -> Any:
        """A size among the results, from the sizes among the arguments."""
        if not isinstance(value, Expr):
            return value
        known: dict[str, Dim] = {}
        for place, size in self.imported.sizes.items():
            name = lone_symbol(size)
            if name is not None:
                known[name] = int(args[place])
        arrays = [args[i] for i in self.imported.inputs if isinstance(i, int)]
        known |= bind_shapes(_without_lifted(self.imported), [tuple(a.shape) for a in arrays])
        return substitute(value, known)

    def _compiled(self, sizes: dict[str, int]) -> Any:
        key = tuple(sorted(sizes.items()))
        if key not in self.by_size:
            func = self.func.bind(sizes) if sizes else self.func
            self.by_size[key] = self._compile(func)
        return self.by_size[key]

    def _compile(self, func: Func) -> Any:
        captured = TorchCaptured(
            func=func, text=self.text, bound=(), flatten=lambda *a: list(a),
            unflatten=lambda r: r, original=_not_callable, args=(), notes=self.notes,
            device=self.device,
        )  # fmt: skip
        own = {k: self.options[k] for k in _OWN if k in self.options}
        if own.get("backend") == "interpreter":
            graph: Any = Interpreted(captured, self.target)
        elif own.get("backend") == RECORD:
            graph = Recorded(captured, self.target)
        else:
            rest = {k: v for k, v in self.options.items() if k not in (*_OWN, _CUT_FOR)}
            # torch traces around us with tensors without memory: a backend makes real ones
            with _disable_current_modes():
                graph = compile_captured(
                    captured, FRONTEND, options=rest, target=self.target, **own
                )
        GRAPHS.append(graph)
        return graph


def _judge(judges: Sequence[Callable[[], None]]) -> None:
    """Wait for what was asked. Raises IndexError."""
    for judge in judges:
        judge()


def _without_lifted(imported: Imported) -> Func:
    func = imported.func
    params = [p for p, i in zip(func.params, imported.inputs, strict=True) if isinstance(i, int)]
    return Func(func.name, Block(params, params), func.level)


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
    """A graph that is imported only, for its record: a call gives zeros."""

    def call_flat(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            torch.zeros([int(str(d)) for d in r.shape], dtype=TORCH_DTYPE[r.dtype])
            for r in self.func.results
        ]
