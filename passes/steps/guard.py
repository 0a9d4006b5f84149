"""Masked loop bodies, and the loop-carried values that allow iterations to be reassociated.

A *total* is an accumulator: iterations only add to it. A *running total* may also be read after the
addition, as in a scan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.traits import (
    converts,
    is_elementwise,
    is_load,
    is_loop,
    is_memory,
    is_number,
    is_store,
    maker,
    multiplies,
)
from stack.passes.positions.visibility import known_value
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import bodies, is_constant
from stack.passes.steps.online import guarded_states, is_online
from stack.passes.steps.tiles import conjuncts


def guarded(edit: Edit, block: Block, test: Node, online: bool = False) -> Block:
    """Masks the body of a loop: iterations for which a test is false change nothing. `online` says
    whether the loop is.

    They load 0 and store nothing. They add the identity of the reduction to a total or a state, so
    that it keeps its value: a load that nothing else reads loads the identity. Other carried values
    are kept by a `select`. What reads a running total reads the masked one.
    """
    moving = test.vars
    totals = {p for p in block.params[1:] if not is_memory(p)}
    running = {} if online else running_totals(block)
    for loop in filter(is_loop, reversed(block.all_nodes)):  # outer ones first
        starts = starts_of(loop)
        mine = {p for p, s in zip(loop.blocks[0].params[1:], starts) if s in totals}
        totals |= mine
        own = {} if is_online(loop) else running_totals(loop.blocks[0])
        running |= {n: p for n, p in own.items() if p in mine}

    def body(old: Block, new: Block, starts: Sequence[Node], online: bool) -> Block:
        """Masks the values that a loop from these starts carries; `new` is its rewritten body."""
        states = (
            guarded_states(edit, new, test) if online and not totals.isdisjoint(starts) else None
        )
        if states is not None:
            return Block(new.params, states)
        readers = Counter(a for n in new.all_nodes for a in n.args)
        results = list(new.results)
        carried = zip(starts, new.params[1:], old.results, new.results, strict=True)
        for i, (start, held, before, result) in enumerate(carried):
            loop = maker(result)
            goes_on = is_loop(loop) and held in starts_of(loop)  # in a loop inside
            if start in totals and before not in running and not goes_on:
                results[i] = edit.note(result, _carried(edit, held, result, test, readers))
        return Block(new.params, results)

    def visit(old: Node, made: Node) -> Node:
        if is_loop(old):
            own = body(old.blocks[0], made.blocks[0], starts_of(made), is_online(old))
            return made.rebuilt(blocks=[own])
        if old in running:
            return _carried(edit, running[old], made, test, {})
        if not (is_load(old) or is_store(old)) or moving.isdisjoint(made.vars):
            return made
        if is_load(old) and not any(not moving.isdisjoint(i.vars) for i in made.args[1:]):
            return made  # the index is the same in all iterations, and in bounds
        return masked(made, test)

    return body(block, edit.rewritten(block, visit), block.params[1:], online)


def why_no_totals(loop: Node, running: bool = False) -> str:
    """Returns why a loop carries other values than memory and totals, or running totals if
    `running`; "" if it carries nothing else.

    No iteration reads a total, so that iterations can be reordered. Running totals are read after
    the addition, as in a scan.
    """
    block = loop.blocks[0]
    is_allowed = is_running_total if running else is_total
    for held, result in zip(block.params[1:], block.results, strict=True):
        if not (is_memory(held) or is_allowed(block, held, result)):
            axis, name = block.params[0].attrs["name"], held.attrs["name"]
            if is_online(loop):
                return f"the loop over {axis} rescales what it carries: step `block` adds at once"
            return f"the loop over {axis} carries {name}, and does more than add to it"
    return ""


def is_total(block: Block, held: Node, result: Node) -> bool:
    """True if iterations only add to the carried value `held`, and nothing else reads it."""
    is_read = any(result in n.args for n in block.all_nodes)
    return not is_read and is_running_total(block, held, result)


def is_running_total(block: Block, held: Node, result: Node) -> bool:
    """True if iterations add to the carried value `held`, then may read the sum."""
    readers = [n for n in block.all_nodes if held in n.args and n is not result]
    is_once = block.results.count(result) == 1
    return summand(held, result) is not None and not readers and is_once


def running_totals(block: Block) -> dict[Node, Node]:
    """Maps each running total of a loop to the variable that carries it."""
    return {
        new: held
        for held, new in zip(block.params[1:], block.results, strict=True)
        if not (is_memory(held) or is_total(block, held, new))
        and is_running_total(block, held, new)
    }


def masked(node: Node, test: Node) -> Node:
    """Returns a load or a store with the condition `test` added to its mask."""
    index, mask, other = access_parts(node)
    both = test if mask is None else make("and", (mask, test))
    first = node.args[: 1 if is_load(node) else 2]
    rest: list[Node] = [*first, *index, both]
    if is_load(node):
        rest.append(other if other is not None else constant(0, node.dtype))
    return make(node.op, rest, node.attrs, hint=node.type)


def _carried(edit: Edit, held: Node, new: Node, test: Node, readers: Mapping[Node, int]) -> Node:
    """Returns the carried value `new`, or `held` where a test is false. `readers` counts the nodes
    of the loop that read a value."""
    if is_memory(held) or new is held:
        return new
    edit.locate(new, test)
    part = summand(held, new)
    if part is None:
        kept = make("select", (test, new, held))
        return edit.note(new, kept)
    kind = KIND_OF[new.op]
    if kind == "sum" and _is_zero(part, test):
        return new
    none = identity(kind, part.dtype)
    kept = _filled_load(edit, part, test, none, readers)
    if kept is None:
        kept = make("select", (test, part, constant(none, part.dtype)))
        edit.note(new, kept)
    return make(new.op, (held, kept))


def summand(held: Node, new: Node) -> Node | None:
    """Returns what an iteration combines with `held` to get `new`; None for other updates."""
    if new.op not in KIND_OF or len(new.args) != 2:
        return None
    first, second = new.args
    if second is held:
        first, second = second, first
    return second if first is held and held not in second.vars else None


# ---- loads that give the identity of a reduction where a condition is false
#
# max(%m, select(lt(%r, 255), load(%p0, %r, lt(%r, 255), 0), -inf))
# max(%m, load(%p0, %r, lt(%r, 255), -inf))                            the same, without a select


def _is_zero(part: Node, test: Node) -> bool:
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
    return bool(read) and all(_is_zero(a, test) for a in read)


def _filled_load(
    edit: Edit, part: Node, test: Node, none: float, readers: Mapping[Node, int]
) -> Node | None:
    """Returns a load, or the conversion of one to another float type, that gives `none` where the
    condition `test` of its mask is false: the identity of the reduction that adds the value. None
    if the value is no such load, or if something else needs a 0. `readers` counts the nodes of the
    loop that read a value.
    """
    if readers.get(part) != 1:
        return None
    if converts(part) and part.dtype.is_float and part.args[0].dtype.is_float:
        loaded = _filled_load(edit, part.args[0], test, none, readers)
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
