"""Splits a Dynamo graph in parts if some of its sizes or numbers depend on data, or if it returns
tensors on another device.

Torch runs what depends on data, and what computes those tensors, op by op; their ops count as
fallbacks. The parts between them are compiled. Parts run in program order, so that writes keep
their order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from stack.errors import StackError, UnsupportedOp
from stack.frameworks.torch_private import FakeTensor, python_dispatch
from stack.frontends.torch.compile.parts import Part, graph_parts
from stack.frontends.torch.graphs.data_dependence import ASSUMES, data_dependent, named_ops
from stack.frontends.torch.importer.errors import PARTS
from stack.frontends.torch.importer.origins import source_line
from stack.frontends.torch.program.compiled_graph import Prepared, is_preparing
from stack.run.record import Run, Stage

Compile = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]

_DEPENDS = "its size or number depends on data, so torch runs it"
_ELSEWHERE = "its result is on another device than the program, so torch runs it"
_UNKNOWN = "a size of an input does not determine the size symbols in it, so torch runs it"
_HINT = (
    "an input or result depends on data, or is on another device; without strict, torch runs them"
    " as fallbacks"
)
_COUNTS = ("ops", "native", "library", "hosted", "python", "fallback", "loop_steps")


def compiled_in_parts(
    gm: GraphModule, examples: Sequence[Any], device: str, compile: Compile, made: Any,
    target: str, strict: bool,
) -> Callable[..., Any]:  # fmt: skip
    """Returns a callable for a Dynamo graph: in parts unless its inputs determine all sizes, and
    its results are on one device.

    Args:
        device: the program's device.
        compile: compiles a graph whose inputs determine all sizes, for example inputs.
        made: list to which the record of the whole is appended, after those of its parts.

    Raises:
        UnsupportedOp: with `strict`, for the ops that torch would run.
    """
    depends = data_dependent(gm)
    elsewhere = _computed_elsewhere(gm, device, depends)
    loose = depends | elsewhere
    if not loose:
        return compile(gm, examples)
    if strict:
        raise UnsupportedOp(list(dict.fromkeys(named_ops(gm, loose))), _HINT)
    rows = [(*row, _DEPENDS) for row in named_ops(gm, depends)]
    rows += [(*row, _ELSEWHERE) for row in named_ops(gm, elsewhere)]
    first = len(made)
    given = dict(zip(gm.graph.find_nodes(op="placeholder"), examples, strict=True))
    steps: list[_Step] = []
    for part in graph_parts(gm, loose):
        inner = [given[n] if n in given else _example(n) for n in part.inputs]
        if part.nodes[0] in loose:
            call = _eager(part.graph)
        elif _unknown_symbols(inner):
            call = _eager(part.graph)
            rows += [(*row, _UNKNOWN) for row in named_ops(gm, {*part.nodes})]
        else:
            _propagate(part)
            call = compile(part.graph, inner)
        steps.append(_Step(call, part.inputs, part.outputs))
    made.append(Parts(gm, rows, [*itertools.islice(made, first, None)], target))
    return torch.compiler.disable(_Steps(gm, steps).__call__, reason="it calls compiled graphs")


def _unknown_symbols(inputs: Sequence[Any]) -> set[Any]:
    """Returns the size symbols of tensors that no input determines, as s0 in `s0 + s0 % 8`."""
    sizes: list[Any] = [s for x in inputs if isinstance(x, torch.Tensor) for s in x.shape]
    found: set[Any] = set()
    for size in (*sizes, *inputs):
        free = size.node.expr.free_symbols if isinstance(size, torch.SymInt) else ()
        if len(free) == 1 and size.node.expr.diff(*free).is_number:
            found |= free
    wanted = (s.node.expr.free_symbols for s in sizes if isinstance(s, torch.SymInt))
    return set[Any]().union(*wanted) - found


def _computed_elsewhere(gm: GraphModule, device: str, depends: Set[Node]) -> set[Node]:
    """Returns the nodes that compute, on another device than the program's, what it returns or what
    nodes that depend on data read."""
    kind = torch.device(device).type
    found: set[Node] = set()
    for node in reversed(gm.graph.nodes):
        value = node.meta.get("example_value")
        if node.op in ("placeholder", "get_attr") or not isinstance(value, torch.Tensor):
            continue
        is_read = any(u.op == "output" or u in depends or u in found for u in node.users)
        if value.device.type != kind and is_read and node not in depends:
            found.add(node)
    return found


def _example(node: Node) -> Any:
    """Returns the example value of a node; a tensor detached, as a leaf of autograd.

    It is an input of a part of the graph that reads the node.
    """
    held = node.meta.get("example_value")
    if not isinstance(held, torch.Tensor):
        return held
    return held.detach().requires_grad_(held.requires_grad)


def _propagate(part: Part) -> None:
    """Compute the example values that a part's results have before later parts write to them."""
    fakes = [n.meta.get("example_value") for n in part.inputs]
    mode = next((f.fake_mode for f in fakes if isinstance(f, FakeTensor)), None)
    if mode is None:
        return
    pairs = zip(part.inputs, fakes, strict=True)
    given = [_copy(_example(n), f) if isinstance(f, FakeTensor) else f for n, f in pairs]
    results: Any = part.graph.graph.output_node().args[0]
    with mode, python_dispatch():
        for node, value in zip(results, _OnFakes(part.graph, mode).run(*given), strict=True):
            node.meta["example_value"] = value


def _copy(example: Any, fake: FakeTensor) -> Any:
    """Copies an example value, with the number that Dynamo knows its `item()` to be, if it does."""
    made = example.clone()
    made.item_memo = fake.item_memo
    return made


class _OnFakes(Interpreter):
    """Runs a part on fake tensors, also for the weights that it holds."""

    def __init__(self, part: GraphModule, mode: Any) -> None:
        super().__init__(part)
        self.mode = mode

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        held = super().get_attr(target, args, kwargs)
        return self.mode.from_tensor(held) if isinstance(held, torch.Tensor) else held


def _eager(part: GraphModule) -> Callable[..., Any]:
    """Returns a callable that runs a part in torch; it raises Prepared while only compiling."""
    line = ""
    for node in part.graph.nodes:
        line = ", ".join(source_line(node)) or line
        if node.target is ASSUMES:
            node.target, node.args = _assume, (*node.args, line)
    part.recompile()

    def call(*args: Any) -> Any:
        if is_preparing():
            raise Prepared
        return part(*args)

    return call


def _assume(holds: Any, text: str, line: str) -> None:
    if not holds:
        said = text.partition(" for expression ")[2].partition(" on node")[0] or text
        raise StackError(
            f"the capture assumed that {said}, for a size or number that depends on data"
            f"{line and f' ({line})'}, and in this call that is false; {PARTS}"
        )


@dataclass(frozen=True)
class _Step:
    """A callable for one part of a graph, with the graph's nodes that it reads and returns."""

    call: Callable[..., Any]
    inputs: Sequence[Node]
    outputs: Sequence[Node]


class _Steps:
    """Calls the parts of a graph in order, and frees values after their last reader."""

    def __init__(self, gm: GraphModule, steps: Sequence[_Step]) -> None:
        self.holders = gm.graph.find_nodes(op="placeholder")
        results: Any = gm.graph.output_node().args[0]
        self.results: Sequence[Any] = results
        self.steps: list[tuple[_Step, list[Node]]] = []  # with the values last used by it
        needed = {n for n in results if isinstance(n, Node)}
        for step in reversed(steps):
            spent = [n for n in (*step.inputs, *step.outputs) if n not in needed]
            self.steps.insert(0, (step, list(dict.fromkeys(spent))))
            needed |= {*step.inputs}

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        env: dict[Node, Any] = dict(zip(self.holders, args, strict=True))
        for step, spent in self.steps:
            found = step.call(*(env[n] for n in step.inputs))
            env.update(zip(step.outputs, found, strict=True))
            for node in spent:
                del env[node]
        return tuple(env[r] if isinstance(r, Node) else r for r in self.results)


class Parts:
    """The record of a graph in parts: the records of its parts, and torch's ops as fallbacks."""

    def __init__(
        self, gm: GraphModule, rows: Sequence[tuple[str, Sequence[str], str]], parts: Sequence[Any],
        target: str,
    ) -> None:  # fmt: skip
        self.target, self.parts = target, parts
        self.text = gm.print_readable(print_output=False, colored=False)
        self.names = Counter(f"torch:{name}" for name, *_ in rows)
        lines = (f"{name}{line and f' at {line[0]}'}: {why}" for name, line, why in rows)
        self.notes = {"fallbacks": "\n".join(dict.fromkeys(lines))}

    def __repr__(self) -> str:
        return f"<Parts {self.target}: {self.run}>"

    @property
    def runs(self) -> dict[tuple[()], Run]:
        return {(): self.run}

    @property
    def run(self) -> Run:
        runs = [run for part in self.parts for run in part.runs.values()]
        backends = [run.backend for run in runs if run.backend != "eager"]
        made = Run(self.target, "torch", [*backends, "eager"][0], notes=self.notes)
        made.records.append(Stage("captured", make_text=lambda: self.text))
        for number, part in enumerate(runs):
            for stage in part.records:
                made.records.append(replace(stage, name=f"part{number}.{stage.name}"))
            made.kernels = [*made.kernels, *part.kernels]
            made.compile_s += part.compile_s
        own = self.names.total()
        counts = {k: sum(r.coverage.get(k, 0) for r in runs) for k in _COUNTS}
        names = sum((Counter(r.coverage.get("fallback_ops", {})) for r in runs), self.names)
        total = {
            **counts,
            "ops": counts["ops"] + own,
            "fallback": counts["fallback"] + own,
            "fallback_ops": dict(sorted(names.items())),
        }
        made.count = lambda: total
        return made

    @property
    def func(self) -> Any:
        """Raises StackError: a program in parts has no single function."""
        raise StackError(
            f"{self.target or 'the program'} is compiled in parts, as torch runs some of its ops:"
            " `run.stages` names the stages of each"
        )
