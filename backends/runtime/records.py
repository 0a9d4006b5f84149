"""The record of each step of a program: the kernel or library, and its cost by the axis rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stack.ir.cost import total
from stack.ir.equivalence import cached_by_class
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.ops import lookup
from stack.ir.traits import is_control, is_fusion, is_while
from stack.ranges import range_name
from stack.run.backend import Kernel, LazyKernel, module_paths, source_lines

GENERATED = ("kernel", "call", "cond", "while")
STEPS = ("group", "contraction", "control", "foreign")  # kinds of ops that execute as steps


def describe_kernel(
    func: Func,
    node: Node,
    name: str,
    text: str | Callable[[], str],
    extension: str,
    **more: Any,
) -> Kernel:
    """Returns the record of a kernel of ours. `text` is the text or a function that prints it;
    `more` are `Kernel.resources` and `Kernel.warning`.
    """
    ops = tuple(node.attrs.get("ops") or ())
    lines = _all_lines(node, func.body.locs.get(node, ()))
    known = _record(func, node, name, "generated", lines, ops=ops, extension=extension, **more)
    make_text = text if callable(text) else lambda: text
    return LazyKernel(known, {"text": make_text, "flops": lambda: _flops_of_kernel(node)})


def describe(func: Func, node: Node, library: str = "", loop_steps: int = 0) -> Kernel:
    """Returns the record of a step without generated code, such as a library call or a fallback."""
    lines = func.body.locs.get(node, ())
    what = str(node.attrs.get("name") or node.attrs.get("target") or node.op)
    if node.op == "custom":
        inner = node.blocks[0].nodes if node.blocks else (node,)
        name = f"{what}.{node.attrs.get('kernel', '')}".rstrip(".")
        kind = "library" if library == "library" else "hand"
        return _record(func, node, name, kind, lines, ops=(what,), flops=_flops(inner))
    inner = node.blocks[0].nodes if is_fusion(node) else (node,)
    kind = "generated" if node.op in GENERATED else "library"
    if node.op == "opaque":
        kind, library = "fallback", ""
    name, ops = f"{library}.{what}" if library else what, dict.fromkeys(n.op for n in inner)
    more = {"ops": tuple(ops), "flops": _flops(inner), "loop_steps": loop_steps}
    return _record(func, node, name, kind, lines, **more)


def _record(
    func: Func, node: Node, name: str, kind: str, lines: Iterable[str], **more: Any
) -> Kernel:
    """Returns the record of a step from its node and source lines; `more` are other fields."""
    lines = tuple(lines)
    return Kernel(
        name,
        kind,
        stage_node=func.body.names.get(node, ""),
        source=source_lines(lines),
        modules=module_paths(lines),
        bytes=_moved(node),
        **more,
    )


def described(
    func: Func,
    steps: Iterable[tuple[Node, str]],
    own: Callable[[Node], Kernel],
    is_whole: Callable[[Node], bool],
) -> list[Kernel]:
    """Returns the record of each step, given as its node and the library that runs it.

    Args:
        own: makes the record of a kernel that we generate.
        is_whole: True for control flow that runs without Python.
    """
    return [
        own(node)
        if node.op == "kernel"
        else describe(func, node, library, _loop_steps(node, False, is_whole))
        for node, library in steps
    ]


def _loop_steps(node: Node, is_repeated: bool, is_whole: Callable[[Node], bool]) -> int:
    """Returns how many steps inside a loop Python runs for a step, in one iteration of each loop.

    `is_repeated`: the step itself is inside a loop.
    """
    if not is_control(node) or is_whole(node):
        return int(is_repeated)
    repeats = is_repeated or is_while(node)
    inner = (n for b in node.blocks for n in b.nodes if lookup(n.op).kind in STEPS)
    return sum(_loop_steps(n, repeats, is_whole) for n in inner)


def steps_of(func: Func, library: str) -> list[tuple[Node, str]]:
    """Returns the nodes of a function that execute as steps: kernels, library calls, control flow.

    Each with the name of its library: `library`, or "" for control flow and opaque calls.
    """
    kinds = ((n, lookup(n.op).kind) for n in func.nodes)
    own = {"control": "", "foreign": ""}
    return [(n, own.get(kind, library)) for n, kind in kinds if kind in STEPS]


def label(kernel: Kernel) -> str:
    """Returns the name of a step's range in profilers, from its record."""
    return range_name(kernel.name, kernel.modules, kernel.source)


def label_of(block: Block, node: Node, library: str) -> str:
    """Returns the name of a step's range in profilers, for a step that has no record."""
    lines = block.locs.get(node, ())
    lines = tuple(_all_lines(node, lines)) if node.op == "kernel" else lines
    name = str(node.attrs.get("name") or node.attrs.get("target") or node.op)
    name = f"{library}.{name}" if library else name
    return range_name(name, module_paths(lines), source_lines(lines))


def kernel_lines(node: Node, lines: Iterable[str]) -> tuple[str, ...]:
    """Source lines of a kernel: its node's, then those of its body."""
    return source_lines(_all_lines(node, lines))


def _all_lines(node: Node, lines: Iterable[str]) -> Iterator[str]:
    yield from lines
    for places in node.blocks[0].locs.values():
        yield from places


@cached_by_class
def _flops_of_kernel(node: Node) -> float:
    return _flops(node.blocks[0].nodes)


def _flops(nodes: Iterable[Node]) -> float:
    flops = total(nodes).flops
    return float(flops) if isinstance(flops, int) else 0.0


def _moved(node: Node) -> float:
    """Returns the bytes of a node's operands and results; symbolic sizes are not counted."""
    types = [t for n in (*node.args, node) for t in n.types]
    return float(sum(t.bytes for t in types if isinstance(t.bytes, int)))
