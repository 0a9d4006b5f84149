"""Prints IR as text, losslessly: `parse(str(f)) is f`."""

from __future__ import annotations

import json
from typing import Any, cast

from stack.ir.data import Data, scalar_text
from stack.ir.dim import INF
from stack.ir.node import Block, Node, is_inline
from stack.ir.types import I64, DType


def attr_text(value: Any) -> str:
    """One attribute value."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(attr_text, cast("tuple[Any]", value))) + "]"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value!r}:float"
    if isinstance(value, DType):
        return f"type {value}"
    return str(value)


def _head_text(body: Block) -> str:
    parts: list[str] = []
    for s in body.symbols:
        low = "" if s.low == -INF else s.low
        high = "" if s.high == INF else s.high
        multiple = f" % {s.multiple}" if s.multiple != 1 else ""
        parts.append(f"{s.name} in {low}..{high}{multiple}")
    parts.extend(f"@{mesh}" for mesh in body.meshes)
    return f"<{', '.join(parts)}>" if parts else ""


def print_function(name: str, body: Block, level: str) -> str:
    """A whole function as text, ending in a newline."""
    printer = _Printer()
    head = f"func @{name}{_head_text(body)}"
    types = ", ".join(str(r.type) for r in body.results)
    lines = [f"{head}({printer.params(body)}) -> ({types}) at {level} {{"]
    lines.extend(printer.body(body, body, 1))
    lines.append("}")
    return "\n".join(lines) + "\n"


def print_node(node: Node, scope: Block | None = None) -> str:
    """One node on one line, for messages. Operands print by the names in `scope`."""
    printer = _Printer()
    table = scope if scope is not None else Block((), ())
    return printer.line(node, table).split("\n")[0]


class _Printer:
    def params(self, block: Block) -> str:
        return ", ".join(self._param(p) for p in block.params)

    def _param(self, node: Node) -> str:
        if node.op == "var" and "extent" in node.attrs:
            kind = "" if node.dtype == I64 else f": {node.dtype}"
            return f"%{node.attrs['name']} < {node.attrs['extent']}{kind}"
        return f"%{node.attrs['name']}: {node.type}"

    def ref(self, node: Node, table: Block) -> str:
        if is_inline(node):
            data: Data = node.attrs["value"]
            return f"{scalar_text(data.array, data.dtype)}:{data.dtype}"
        if node.op in ("param", "var"):
            return f"%{node.attrs['name']}"
        return f"%{table.names.get(node, node.op)}"

    def line(self, node: Node, table: Block, depth: int = 0) -> str:
        args = ", ".join(self.ref(a, table) for a in node.args)
        text = f"{self.ref(node, table)} = {node.op}({args})"
        if node.attrs:
            text += " {" + ", ".join(f"{k}={attr_text(v)}" for k, v in node.attrs.items()) + "}"
        text += f" : {node.type}"
        where = table.locs.get(node)
        if where:
            text += " from " + ", ".join(map(json.dumps, where))
        for block in node.blocks:
            inner = table if block.is_open else block
            body = self.body(block, inner, depth + 1)
            text += " {" + f"({self.params(block)})\n" + "\n".join(body) + "\n" + "  " * depth + "}"
        return text

    def body(self, block: Block, table: Block, depth: int) -> list[str]:
        pad = "  " * depth
        lines = [pad + self.line(n, table, depth) for n in block.nodes if not is_inline(n)]
        results = ", ".join(self.ref(r, table) for r in block.results)
        return [*lines, f"{pad}return {results}".rstrip()]
