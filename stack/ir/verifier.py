"""Checks a function against the op table. Runs after every pass."""

from __future__ import annotations

from stack.errors import RuleError, VerifyError
from stack.ir import ops
from stack.ir.node import Block, Func, Node, topological
from stack.ir.printer import print_node


def verify(func: Func) -> None:
    """Raise VerifyError, naming node, rule and source lines, when the function is not sound."""
    _verify_block(func.body, func.level, func.body, f"function @{func.name}")
    for result in func.results:
        if not hasattr(result.type, "shape"):
            raise VerifyError(f"function @{func.name} returns a tuple; pick items first")


def _verify_block(block: Block, level: str, table: Block, where: str) -> None:
    names = [p.attrs.get("name") for p in block.params]
    if len(set(names)) != len(names):
        raise VerifyError(f"{where} has two parameters of one name: {names}")
    if not block.is_open:
        if block.free:
            loose = ", ".join(sorted(str(v.attrs["name"]) for v in block.free))
            raise VerifyError(f"{where} is closed but uses the loop variable(s) {loose}")
        own = set(block.params)
        for node in topological(block.results):
            if node.op == "param" and node not in own:
                raise VerifyError(
                    f"{where} uses %{node.attrs['name']}, a parameter of another block",
                    print_node(node, table),
                )
    for node in block.nodes:
        _verify_node(node, level, table)


def _verify_node(node: Node, level: str, table: Block) -> None:
    def fail(rule: str) -> VerifyError:
        return VerifyError(rule, print_node(node, table), table.locs.get(node, ()))

    op = ops.OPS.get(node.op)
    if op is None:
        raise fail(f"unknown op {node.op!r}")
    if level not in op.levels:
        raise fail(f"op {node.op!r} may not appear at level {level!r}, only at {sorted(op.levels)}")
    try:
        inferred = ops.infer_type(node.op, node.args, node.attrs, node.blocks, node.type)
    except RuleError as error:
        raise fail(str(error)) from error
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise fail(f"{node.op} does not accept its operands or attributes: {error}") from error
    if inferred != node.type:
        raise fail(f"the axis rule gives {inferred}, the node says {node.type}")
    for block in node.blocks:
        if op.closed and block.is_open:
            raise fail(f"{node.op} takes closed blocks")
        inner = "tensor" if node.op in ("fusion", "call", "while", "cond") else level
        if node.op == "kernel":
            inner = str(node.attrs["level"])
        _verify_block(block, inner, table if block.is_open else block, f"block of {node.op}")
