"""rounding: round each result of a 16-bit float op to 16 bits, as eager frameworks do.

Kernels widen 16-bit floats as they load them, and keep f32 between the ops of a kernel: excess
precision, as C's FLT_EVAL_METHOD and XLA's `xla_allow_excess_precision` allow. If results have to
equal those of op by op execution, this pass says so in the IR: each op computes in f32, and a cast
rounds its result. Casts are exact rules for every backend.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir import ops
from stack.ir.builder import make, rebuild
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.types import F32, DType, TensorType
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class Rounding(Pass):
    """Round after each elementwise op of 16-bit floats; kernels then keep no excess precision."""

    def run(self, func: Func, log: Log) -> Func:
        def visit(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
            if _rounds(node) and log.spend("rounding", func.body.locs.get(node, ())):
                wide = Node(node.op, [_widened(a) for a in args], node.attrs, _wide(node.tensor))
                return make("cast", (wide,), hint=node.tensor)
            return node.rebuilt(args, blocks=blocks)

        return rebuild(func, visit)


def _rounds(node: Node) -> bool:
    return (
        ops.lookup(node.op).kind == "elementwise"
        and not ops.algebra_of(node).exact
        and isinstance(node.type, TensorType)
        and _is_short(node.dtype)
    )


def _is_short(dtype: DType) -> bool:
    return dtype.kind == "f" and dtype.bits == 16


def _wide(type_: TensorType) -> TensorType:
    return type_.with_dtype(F32) if _is_short(type_.dtype) else type_


def _widened(node: Node) -> Node:
    wide = _wide(node.tensor)
    return node if wide == node.type else make("cast", (node,), hint=wide)
