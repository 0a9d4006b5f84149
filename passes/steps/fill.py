"""Loads that give the identity of a reduction where a condition is false.

max(%m, select(lt(%r, 255), load(%p0, %r, lt(%r, 255), 0), -inf))
max(%m, load(%p0, %r, lt(%r, 255), -inf))                            the same, without a select
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.builder import constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import (
    converts,
    is_elementwise,
    is_load,
    is_number,
    is_store,
    multiplies,
)
from stack.passes.positions.visibility import known_value
from stack.passes.steps.access import conjuncts
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import bodies, is_constant


def is_zero(part: Node, test: Node) -> bool:
    """True if a value is 0 wherever the condition `test` is false: it is a load that `test` masks,
    or is computed from such loads and constants, and 0 for zeros.
    """
    if is_load(part):
        _, mask, other = access_parts(part)
        return test in conjuncts(mask) and other is not None and is_constant(other, 0)
    read = [a for a in part.args if not is_number(a)] if is_elementwise(part) else []
    is_kept = converts(part) or (multiplies(part) and not part.dtype.is_float)
    if not (is_kept or known_value(part, dict.fromkeys(read, 0.0)) == 0):
        return False
    return bool(read) and all(is_zero(a, test) for a in read)


def filled_load(
    edit: Edit, part: Node, test: Node, none: float, readers: Mapping[Node, int]
) -> Node | None:
    """Returns a load, or the conversion of one to another float type, that gives `none` where the
    condition `test` is false. None if the value is no such load, or if something else needs a 0.

    Args:
        edit: the rewrite that this is part of.
        part: the value.
        test: the condition, which is in the mask of the load.
        none: the identity of the reduction that adds the value.
        readers: the number of nodes in the loop that read a value.
    """
    if readers.get(part) != 1:
        return None
    if converts(part) and part.dtype.is_float and part.args[0].dtype.is_float:
        loaded = filled_load(edit, part.args[0], test, none, readers)
        return None if loaded is None else edit.note(part, part.rebuilt([loaded]))
    index, mask, other = access_parts(part) if is_load(part) else ([], None, None)
    if test not in conjuncts(mask) or other is None or not is_constant(other, 0):
        return None
    assert mask is not None
    nodes = (n for body in bodies(edit.kernel) for n in body.nodes)
    if sum(is_load(n) and n.args[0] is part.args[0] for n in nodes) > 1:
        return None  # loops whose tiles stay in registers need the same ones
    # a condition of all stores may be false too: nothing that is computed then is stored
    stores = [conjuncts(access_parts(n)[1]) for n in edit.block.all_nodes if is_store(n)]
    if not all(c is test or all(c in store for store in stores) for c in conjuncts(mask)):
        return None
    fill = constant(none, part.dtype)
    return edit.note(part, part.rebuilt([part.args[0], *index, mask, fill]))
