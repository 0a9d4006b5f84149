"""Remove guards that are constant: conditions on loop variables with one value in all iterations.

select(lt(%j, 48), load(%p0, %j), 0.0)      with %j from 0 to 47:      load(%p0, %j)
"""

from __future__ import annotations

from stack.ir.builder import constant, filled, make
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import Selection, choice, connective, is_load, is_store
from stack.passes.steps.affine import WHOLE, Ranges
from stack.passes.steps.edit import Edit
from stack.passes.steps.intervals import held, is_condition


def without_guards(edit: Edit, block: Block, ranges: Ranges = WHOLE) -> Block:
    """Removes the selections, masks and conditions of a block that are constant.

    `ranges`: the iterations that run, for variables that do not run over their whole extent.
    """

    def visit(_: Node, made: Node) -> Node:
        guard = _guard(made)
        value = held(guard.test, ranges) if guard is not None else None
        if guard is not None and value is not None:
            return filled(guard.yes if value else guard.no, made)
        if not is_condition(made):
            return made
        if (value := held(made, ranges)) is not None:
            return filled(constant(value, made.dtype), made)
        left = [a for a in made.args if held(a, ranges) is None]
        return left[0] if connective(made) and len(left) == 1 else made

    return edit.rewritten(block, visit)


def _guard(node: Node) -> Selection | None:
    """Returns a select node, or a masked load or store, as a selection: where its mask is false, an
    access is the value of masked lanes, or the memory before it. None for other nodes.
    """
    if not (is_load(node) or is_store(node)):
        return choice(node)
    index, mask, other = access_parts(node)
    if mask is None:
        return None
    operands = [*node.args[: 1 if is_load(node) else 2], *index]
    skipped = node.args[0] if is_store(node) else other
    assert skipped is not None
    return Selection(mask, make(node.op, operands, node.attrs, hint=node.type), skipped)
