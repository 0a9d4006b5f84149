"""Names the op, source line, module and kernel where a nan or an infinity first appears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stack.errors import StackError, UsageError
from stack.explore.in_memory_run import held
from stack.explore.lowering import (
    Settings,
    capture,
    own_inputs,
    record_of,
    with_random_inputs,
)
from stack.explore.provenance import places
from stack.explore.saved_run import SavedRun
from stack.explore.table import table
from stack.explore.target import CommandTarget, ExampleCall
from stack.faults.nonfinite import Findings, Source, Watch, operands, reason, scalar_text, watched
from stack.ir.func import Func
from stack.ir.node import Node, is_inline, walk
from stack.run.backend import module_paths, source_lines

OTHERS = 3  # other sources that are printed


@dataclass(frozen=True)
class OperandValue:
    """An operand of the op, at the element that became nan or infinite.

    `index` is one element, or the box of elements that a reduction or matmul reads; `value` is then
    their smallest and largest value.
    """

    name: str
    type: str
    index: str
    value: str


@dataclass(frozen=True)
class Appearance:
    """A value whose elements are nan or infinite although those it is computed from are not.

    `node` is the value's name, `index` its first such element, `count` the number of them, `lines`
    are source lines. `value` is "nan", "inf" or "-inf".
    """

    node: str
    op: str
    type: str
    index: tuple[int, ...]
    value: str
    count: int
    why: str
    lines: tuple[str, ...]
    modules: tuple[str, ...]
    operands: tuple[OperandValue, ...] = ()
    kernels: tuple[str, ...] = ()
    note: str = ""  # why the kernel is unknown

    @property
    def place(self) -> str:
        """The op, line, module and kernel in one phrase."""
        at = f" at {', '.join(self.lines)}" if self.lines else ""
        inside = f" in {', '.join(self.modules)}" if self.modules else ""
        kernel = f", kernel {', '.join(self.kernels)}" if self.kernels else ""
        if self.op == "const":
            return f"the constant {self.value}{at}{inside}"
        what = "argument" if self.op == "param" else self.op
        return f"{what} %{self.node}{at}{inside}{kernel}"

    @property
    def origin(self) -> str:
        """The place and the reason; a constant needs none."""
        return self.place if self.op == "const" else f"{self.place}: {self.why}"

    @property
    def element(self) -> str:
        """The first element with its value, as `%x[0, 3] = nan`."""
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        more = f" ({self.count} elements)" if self.count > 1 else ""
        return f"%{self.node}{index} = {self.value}{more}: {self.why}"


@dataclass(frozen=True)
class FirstNan:
    """The result of `stack.first_nan`; it prints as text.

    Attributes:
        kind: "nan" or "inf": what was found; "" if every value is finite.
        first: where it first appears; None if it does not.
        causes: where the infinities among its operands first appear.
        others: where more of them appear independently.
        results: for each result the number of nans and of infinities.
        is_seen: True if a result has some of them.
    """

    kind: str
    first: Appearance | None
    causes: tuple[Appearance, ...] = ()
    others: tuple[Appearance, ...] = ()
    results: tuple[tuple[int, int], ...] = field(default=())

    @property
    def is_seen(self) -> bool:
        return any(nans if self.kind == "nan" else infs for nans, infs in self.results)

    def __str__(self) -> str:
        if self.first is None:
            return (
                "no value is nan or leads to an infinite result in the interpreter; if the compiled"
                " program returns one, `stackc bisect` finds the kernel"
            )
        lines = [f"the first {self.kind}: {self.first.place}", self.first.element]
        if self.first.note:
            lines.append(self.first.note)
        if self.first.operands:
            rows = [[o.name, o.type, o.index, o.value] for o in self.first.operands]
            lines += ["", table(["operand", "type", "element", "value"], rows, drop=["type"]), ""]
        lines += [f"an infinity among them comes from {c.origin}" for c in self.causes]
        lines += [f"also: {o.origin}" for o in self.others[:OTHERS]]
        left = len(self.others) - OTHERS
        lines += [f"and {left} more"] if left > 0 else []
        return "\n".join([*lines, *self._of_results()])

    def _of_results(self) -> list[str]:
        if not self.is_seen:
            return [f"no result has {self.kind}: later ops do not read these elements"]
        found = [(i, *counts) for i, counts in enumerate(self.results) if any(counts)]
        return [f"result {i}: {nans} nan, {infs} inf" for i, nans, infs in found]


def first_nan_of(
    target: CommandTarget, settings: Settings, inf: bool = False, seed: int = 0
) -> FirstNan:
    """Finds the first nan in the program of a target, see `stack.first_nan`.

    IR text and saved runs get random inputs.
    """
    captured, frontend = capture(target, settings)
    if not isinstance(target, ExampleCall):
        captured = with_random_inputs(captured, seed)
    func, inputs = captured.func, own_inputs(captured, frontend)
    if not inputs and func.params:
        raise UsageError("this program has no example arguments: pass them after the function")
    sizes = func.sizes([a.shape for a in inputs])
    bound = func.bind(sizes) if sizes else func
    return found_in(watched(bound, inputs), bound, _Kernels(target, settings), inf)


def found_in(seen: Findings, func: Func, kernels: _Kernels, inf: bool = False) -> FirstNan:
    """Describes the first nan, or infinity, among the watched values of a function."""
    counts = tuple((int(seen.nans.bad(r).sum()), int(seen.infs.bad(r).sum())) for r in seen.results)
    names = _Names(func)
    for kind, watch in (("nan", seen.nans), ("inf", seen.infs)):
        reaching = _reaching(watch, seen.results)
        chosen = reaching or (watch.sources if kind == "nan" else [])
        if not chosen or (inf and kind == "nan"):
            continue
        first, *others = chosen
        others += [s for s in watch.sources if s not in chosen] if kind == "nan" else []
        read = [o.has_inf for o in operands(first)]
        causes = first.infinite if any(read) and first.node.op != "param" else ()
        return FirstNan(
            kind,
            names.appearance(first, kernels),
            tuple(names.appearance(s, None) for s in causes),
            tuple(names.appearance(s, None) for s in others),
            counts,
        )
    return FirstNan("", None, results=counts)


def _reaching(watch: Watch, results: Sequence[Any]) -> list[Source]:
    """Returns the sources whose elements may be in a result, in the order of evaluation."""
    found = {s for r in results for s in watch.origins(r)}
    return [s for s in watch.sources if s in found]


class _Names:
    """Names and source lines of the nodes of a function, in nested blocks too."""

    def __init__(self, func: Func) -> None:
        self.names: dict[Node, str] = {}
        self.lines: dict[Node, tuple[str, ...]] = {}
        nodes = list(walk(func.body))
        for block, node in nodes:
            self.names |= {node: block.names[node]} if node in block.names else {}
            self.lines |= {node: block.locs[node]} if node in block.locs else {}
        for _, node in nodes:  # a constant has the line of a node that reads it
            for a in node.args:
                if is_inline(a) and node in self.lines:
                    self.lines.setdefault(a, self.lines[node])

    def name(self, node: Node) -> str:
        """Returns a node's name; that of its op if it has none, as inline constants."""
        return str(node.attrs.get("name") or self.names.get(node, node.op))

    def spelled(self, node: Node) -> str:
        """Returns an operand's name as in IR text; that of a constant is its op."""
        return node.op if is_inline(node) else f"%{self.name(node)}"

    def appearance(self, source: Source, kernels: _Kernels | None) -> Appearance:
        """Describes a source; its kernel too if `kernels` is given."""
        node, lines = source.node, self.lines.get(source.node, ())
        name = self.name(node)
        found = kernels.of(name) if kernels is not None and node.op != "param" else ()
        return Appearance(
            name,
            node.op,
            str(node.type),
            source.index,
            scalar_text(source.value[source.index]),
            int(source.bad.sum()),
            reason(source),
            source_lines(lines),
            module_paths(lines),
            tuple(
                OperandValue(self.spelled(a), str(a.type), o.index, _span(o.values))
                for a, o in zip(node.args, operands(source), strict=True)
            ),
            found,
            kernels.note if kernels is not None else "",
        )


class _Kernels:
    """The kernels of a program, which is compiled when one is asked for the first time."""

    def __init__(self, target: CommandTarget, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.note = ""  # why the program has no kernels

    def of(self, name: str) -> tuple[str, ...]:
        """Returns the kernels that compute a value of the imported program."""
        try:
            run = held(record_of(self.target, self.settings))
        except StackError as error:
            self.note = f"its kernel is unknown: {str(error).splitlines()[0]}"
            return ()
        return kernels_of(run, name)


def kernels_of(run: SavedRun, name: str) -> tuple[str, ...]:
    """Returns the kernels of a run that compute a value, by its name in the imported program.

    It is looked up in the last stage whose values have this name.
    """
    for stage in reversed([s for s in run.stages if run.is_ir(s)]):
        inside = {(p.path or (p.name,))[0] for p in places(run.func(stage)) if p.name == name}
        if inside:
            mine = [str(k["name"]) for k in run.kernels if k["stage_node"] in inside]
            return tuple(dict.fromkeys(mine))
    return ()


def _span(values: np.ndarray[Any, Any]) -> str:
    """Formats one value, or the range of several with the number of nans and infinities."""
    if values.size == 1:
        return scalar_text(values)
    if values.size == 0:
        return "nothing"
    if values.dtype.kind not in "fc":
        return f"{scalar_text(values.min())} to {scalar_text(values.max())}"
    wide = np.abs(values) if values.dtype.kind == "c" else values
    finite = wide[np.isfinite(wide)]
    text = f"{scalar_text(finite.min())} to {scalar_text(finite.max())}" if finite.size else ""
    counts = {"inf": int(np.isinf(values).sum()), "nan": int(np.isnan(values).sum())}
    parts = [text, *(f"{n} {what}" for what, n in counts.items() if n)]
    return f"{values.size} values: {', '.join(filter(None, parts))}"
