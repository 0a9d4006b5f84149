"""hosted: decompose operators, or keep them for handwritten kernels.

A handwritten kernel is one launch. It is priced as moving its operands and results once, at the
share of the machine's rates that its declaration states. Generated code is priced as the fusion
groups of the decomposition. If those cost no more, the decomposition wins, since it also fuses with
its neighbours.

No kernel is generated for a scan of few, long rows: a library would run it. There the handwritten
kernel is kept, and a bare scan that equals an operator is given its kernel. So is a linear
recurrence that a program computes by a tree of slices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from stack.errors import StackError, UsageError
from stack.hosted import Kernel, Op, declared, find
from stack.hosted.nodes import attributes_of, custom, decomposed, with_kernel
from stack.ir.builder import Builder
from stack.ir.cost import Cost, cost
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.types import TensorType
from stack.passes.policies.scans import leaves_idle
from stack.passes.recurrences import bytes_saved, operands_of, recurrences_in
from stack.rewrite.check import FINITE, WIDER
from stack.rewrite.engine import Scope, Simple, inline_block, rewrite
from stack.rewrite.log import Log, Note
from stack.rewrite.passes import Pass
from stack.rewrite.pipeline import Pipeline
from stack.target import Cpu, Gpu, Target

CHOICES = ("cost", "hand", "generated")
# pipelines that group a decomposition, to estimate its cost
_GROUPS = {
    "cpu": "canonicalize,fold,decompose,canonicalize,stream{loops=cpu},fuse",
    "cuda": "canonicalize,fold,decompose{gpu=true},canonicalize,stream{loops=blocks},fuse",
}
GATED = "scan.gated"  # the operator of linear recurrences
# recurrences add in another order, and products of gates may overflow in the one but not the other
_REORDERED = WIDER | FINITE
_IDLE = "no program scans lines that are so few and long"
_FREE = ("const", "item", "param", "reshape")


@dataclass(frozen=True)
class Hosted(Pass):
    """Decompose each operator, or keep it for a handwritten kernel.

    Attributes:
        prefer: "hand" keeps every operator that has a kernel for its operands, "generated" none,
            "cost" those whose generated groups would take longer.
        device: the device of that kernel: "cpu" or "cuda"; none decomposes all.
    """

    prefer: str = "cost"
    device: str | None = None

    def run(self, func: Func, log: Log) -> Func:
        if self.prefer not in CHOICES or self.device not in (None, *_GROUPS):
            raise UsageError(f"prefer is one of {', '.join(CHOICES)}; device cpu, cuda or none")
        chooser = _Chooser(self, log)
        rules = (
            Simple("hosted", ("custom",), chooser.operator),
            Simple("hosted_result", ("item",), chooser.result),
            Simple("hosted_scan", ("scan",), chooser.scan),
            Simple("hosted_recurrence", ("add",), chooser.recurrence, inexact=_REORDERED),
        )
        return rewrite(func, rules, log)


Key = tuple[str, object, Block]


@dataclass
class _Chooser:
    """Caches the choice for each operator: its handwritten kernel, or None to decompose it."""

    options: Hosted
    log: Log
    chosen: dict[Key, Kernel | None] = field(default_factory=dict[Key, "Kernel | None"])

    def operator(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        if "kernel" in node.attrs or not node.blocks:
            return None
        kernel = self.kernel(node, scope)
        if kernel is not None:
            return with_kernel(node, kernel.name)
        block = node.blocks[0]
        return inline_block(block, node.args, op)[0] if len(block.results) == 1 else None

    def result(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        """Replaces one result of an operator with several results by its decomposition. Returns
        None if the operator keeps a handwritten kernel."""
        source = node.args[0]
        if source.op != "custom" or "kernel" in source.attrs or not source.blocks:
            return None
        if self.kernel(source, scope) is not None:
            return None
        return inline_block(source.blocks[0], source.args, op)[int(node.attrs["index"])]

    def scan(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        """Replaces a scan that gets no generated kernel by the equivalent hosted operator."""
        asked = self.options.device == "cuda" and self.options.prefer != "generated"
        if not asked or not leaves_idle(node, self.log.gpu):
            return None
        for made in _single("scan"):
            types = tuple(a.tensor for a in node.args)
            kernel = made.kernel_for("cuda", types, {})
            if kernel is not None and _is_all_of(made, node):
                text = f"scan becomes {made.name}, {_named(kernel)}: {_IDLE}"
                self.log.notes.append(Note(text, scope.block.locs.get(node, ())))
                return with_kernel(custom(op, made, node.args, {})[0], kernel.name)
        return None

    def recurrence(self, node: Node, op: Builder, scope: Scope) -> Node | None:
        """Replaces the tree of a linear recurrence by the hosted operator, one kernel, if there is
        one for its operands and it saves more time than its launch takes."""
        asked = self.options.device == "cuda" and self.options.prefer != "generated"
        has = asked and GATED in declared()
        found = recurrences_in(scope.block).get(node) if has else None
        if found is None or found.axis == node.tensor.rank - 1:
            return None  # the operator has channels, which are contiguous
        made, operands = find(GATED), operands_of(found, op)
        kernel = made.kernel_for("cuda", [a.tensor for a in operands], {})
        if kernel is None:
            return None
        gpu = self.log.gpu
        launch = gpu.launch if kernel.capturable else gpu.scans.python_launch
        if self.options.prefer == "cost" and bytes_saved(found) / gpu.memory_rate < launch:
            return None
        text = f"a tree of slices becomes {made.name}, {_named(kernel)}: it is a linear recurrence"
        self.log.notes.append(Note(text, scope.block.locs.get(node, ())))
        states = with_kernel(custom(op, made, operands, {})[0], kernel.name)
        return op.reshape(states, type=node.type)

    def kernel(self, node: Node, scope: Scope) -> Kernel | None:
        key = (str(node.attrs["name"]), node.attrs.get("params"), node.blocks[0])
        if key not in self.chosen:
            kernel, why = self._choice(node)
            self.chosen[key] = kernel
            what = f"kept for {_named(kernel)}" if kernel is not None else "decomposed"
            text = f"{node.attrs['name']} {what}: {why}"
            self.log.notes.append(Note(text, scope.block.locs.get(node, ())))
        return self.chosen[key]

    def _choice(self, node: Node) -> tuple[Kernel | None, str]:
        if self.options.prefer == "generated" or not self.options.device:
            return None, "generated code is asked for"
        try:
            made = find(str(node.attrs["name"]))
        except StackError as error:
            return None, str(error)
        attributes = attributes_of(node)
        types = [a.tensor for a in node.args]
        kernel = made.kernel_for(self.options.device, types, attributes)
        if kernel is None:
            mine = [k for k in made.kernels if k.device == self.options.device]
            whys = [f"{_named(k)}: {k.why_not(types, attributes)}" for k in mine]
            return None, "; ".join(whys) or f"no handwritten code for {self.options.device}"
        if self.options.prefer == "hand":
            return kernel, "code by hand is asked for"
        return self._by_cost(node, kernel)

    def _by_cost(self, node: Node, kernel: Kernel) -> tuple[Kernel | None, str]:
        target = self.log.cpu if kernel.device == "cpu" else self.log.gpu
        groups = _groups(node.blocks[0], kernel.device, target)
        if isinstance(target, Gpu) and any(_is_idle(g, target) for g in groups):
            return kernel, _IDLE
        generated = sum(_seconds(g, target) for g in groups)
        by_hand = _seconds(node, target, kernel.share)
        told = (
            f"{len(groups)} generated kernel(s) take an estimated {generated * 1e6:.1f} us,"
            f" {_named(kernel)} {by_hand * 1e6:.1f} us"
        )
        return (kernel if by_hand < generated else None), told


def _is_idle(group: Node, gpu: Gpu) -> bool:
    return any(n.op == "scan" and leaves_idle(n, gpu) for n in (group, *_inside(group)))


@cache
def _single(word: str) -> tuple[Op, ...]:
    """Returns the declared operators of the family `word` that take one array, have no attributes,
    and have handwritten kernels."""
    found = (find(name) for name in declared() if name.startswith(f"{word}."))
    return tuple(m for m in found if len(m.operands) == 1 and not m.attributes and m.kernels)


def _is_all_of(made: Op, node: Node) -> bool:
    """True if the decomposition of the operator `made` is a single op, equal to `node`."""
    func = decomposed(made, tuple(a.tensor for a in node.args), ())
    (result,) = func.results
    return (result.op, result.args, result.attrs) == (node.op, func.params, node.attrs)


def _named(kernel: Kernel) -> str:
    return f"{kernel.kind} kernel {kernel.name!r}"


def _groups(block: Block, device: str, target: Target) -> list[Node]:
    """Runs fusion on an operator's decomposition; returns the resulting nodes that each launch a
    kernel."""
    done = Pipeline(_GROUPS[device]).run(Func("operator", block), target=target, verify=False)
    return [n for n in done.func.nodes if n.op not in _FREE]


def _seconds(node: Node, target: Target, share: float = 1.0) -> float:
    """Estimates the time of one kernel launch for `node`, a group or operator, that reaches `share`
    of the machine's peak compute and memory rates."""
    found: Cost = cost(node)
    many = target.cores if isinstance(target, Cpu) else 1
    rate = target.bf16_rate if _is_narrow(_inside(node)) else target.f32_rate
    work = _number(found.flops) / (rate * many)
    return max(work, _number(found.bytes) / target.memory_rate) / share + target.launch


def _inside(node: Node) -> Iterable[Node]:
    return (n for b in node.blocks for n in b.nodes) if node.blocks else (node,)


def _is_narrow(nodes: Iterable[Node]) -> bool:
    """True if there are dots among the nodes, and all multiply elements of at most 16 bits, for
    which tensor cores are used."""
    dots = [n for n in nodes if n.op == "dot"]
    types = [n.args[0].type for n in dots]
    return bool(dots) and all(isinstance(t, TensorType) and t.dtype.bits <= 16 for t in types)


def _number(amount: object) -> float:
    return float(amount) if isinstance(amount, int) else 0.0
