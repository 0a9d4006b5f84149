"""Readable names for values of a kernel, taken from the program that contains the kernel, and the
source lines of printed kernels. Compilers carry them on to machine code as line numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stack.ir.node import Block, Node
from stack.ir.traits import is_item, is_load

_OTHER = re.compile(r"\W", re.ASCII)
_UNNAMED = re.compile(r"load(_\d+)?")


def argument_names(scope: Block, kernel: Node) -> tuple[str, ...]:
    """Names of a kernel's operands, then of its results, in the block that contains the kernel."""
    items = [n for n in scope.nodes if is_item(n) and n.args == (kernel,)]
    parts = {int(n.attrs["index"]): n for n in items}
    results = [parts.get(i, kernel) for i in range(len(kernel.types))]
    return tuple(_name(scope, n) for n in (*kernel.args, *results))


def function_name(kernel: str) -> str:
    """The name of a kernel's function in printed text.

    The prefix avoids clashes with keywords, library functions and helpers of the printer: a kernel
    may be called `sin`, `for` or `tl`.
    """
    return "kernel_" + _OTHER.sub("_", kernel)


def value_name(block: Block, node: Node, memories: Mapping[Node, str]) -> str:
    """The name of a value in a kernel. An unnamed load gets the name of the memory it reads."""
    name = block.names.get(node, node.op)
    is_read = is_load(node) and _UNNAMED.fullmatch(name) is not None
    return memories.get(node.args[0], name) if is_read else name


def _name(scope: Block, node: Node) -> str:
    return scope.names.get(node) or str(node.attrs.get("name", node.op))


OWN = "-"  # file name for text without a source line: MLIR's name for the text it is given


def place_of(line: str) -> tuple[str, int]:
    """File and number of `block.py:42 Attn.wq`; the number is 0 if there is none."""
    file, _, number = line.split(" ")[0].rpartition(":")
    return (file, int(number)) if number.isdigit() else (line, 0)


def in_full(origins: Sequence[str], whole: Sequence[str]) -> tuple[str, ...]:
    """Returns the source line of each line of a kernel's text.

    If the kernel has a single source line, all text gets that, else the lines in `origins`.

    Args:
        origins: the source line of each line of the text; "" for a statement without one.
        whole: the source lines of the kernel.
    """
    return (whole[0],) * len(origins) if len(whole) == 1 else tuple(origins)


def origin(origins: Sequence[str], number: int) -> str:
    """The source line (`block.py:42`) of a line of the text, counted from 1; "" if it has none."""
    return origins[number - 1].split(" ")[0] if 0 < number <= len(origins) else ""
