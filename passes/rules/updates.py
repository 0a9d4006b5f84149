"""Rules for sums of rows at given indices."""

from __future__ import annotations

from stack.ir import ops
from stack.ir.builder import Builder, block_of, constant, make, new_params, reshaped
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.traits import (
    behind,
    is_alias,
    is_generated,
    is_item,
    is_number,
    reads_by_data,
    repeats,
    splat,
    writes_by_data,
)
from stack.ir.types import I32, DType, TensorType
from stack.ir.updates import updated_rows
from stack.rewrite.engine import Scope, on


@on("cast", of=("scatter",))
def sums_of_few_rows(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rewrite the gradient of an embedding: rows added to zeros and rounded to 16 bits.

    It applies if there are fewer updates than table rows. Each table row that is updated gets one
    of as many slots as there are updates. Sums are in the slots; every table row reads its slot, or
    is 0. So f32 sums of the whole table are never in memory. Updates that the scatter drops, those
    of rows on other ranks, get a slot of their own that no table row reads.
    """
    total = node.args[0]
    if total.attrs["kind"] != "add" or not _is_narrowing(node):
        return None
    drops = bool(total.attrs.get("drop"))
    rows = updated_rows(total)
    if rows is None or scope.used_outside(total, (node,)):
        return None
    base, index, updates = total.args
    count, places = index.tensor.size, base.shape[rows.axis]
    if splat(base) != 0 or not isinstance(count, int) or not isinstance(places, int):
        return None
    if not 0 < count < places or (drops and index.dtype.bits < 32):
        return None
    flat = reshaped(index, (count,))
    line = make("iota", (), {"axis": 0}, hint=TensorType(I32, (count,)))
    none = _full(-1, I32, (places,))
    setting = {"rule": "v!, n, n -> v!", "kind": "set", **({"drop": True} if drops else {})}
    slots = make("scatter", (none, flat, line), setting)
    inside = _inside(flat, places) if drops else None
    named = flat if inside is None else make("select", (inside, flat, constant(0, flat.dtype)))
    own = make("gather", (slots, named), {"rule": "v!, n -> n"})
    own = own if inside is None else make("select", (inside, own, line))
    shape = (*base.shape[: rows.axis], count, *base.shape[rows.axis + 1 :])
    adding = {k: v for k, v in total.attrs.items() if k != "drop"}
    own = reshaped(own, index.shape)
    sums = make("scatter", (_full(0, total.dtype, shape), own, updates), adding)
    first = make("max", (slots, constant(0, I32)))
    read = make("gather", (sums, first), {"rule": _reading(len(shape), rows.axis)})
    is_named = make("ge", (slots, constant(0, I32)))
    is_updated = make(
        "broadcast",
        (is_named,),
        {"axes": (rows.axis,)},
        hint=is_named.tensor.with_shape(node.shape),
    )
    value = make("cast", (read,), hint=node.type)
    return make("select", (is_updated, value, constant(0, node.dtype)))


def _inside(index: Node, places: int) -> Node:
    """Returns a mask: True for indices of one of `places` rows."""
    first = make("ge", (index, constant(0, index.dtype)))
    return make("and", (first, make("lt", (index, constant(places, index.dtype)))))


def _is_narrowing(node: Node) -> bool:
    return node.dtype.is_float and node.dtype.bits <= 16 and node.args[0].dtype.is_float


def _full(value: int, dtype: DType, shape: tuple[Dim, ...]) -> Node:
    return make("broadcast", (constant(value, dtype),), {"axes": ()}, hint=TensorType(dtype, shape))


def _reading(rank: int, axis: int) -> str:
    """Returns the axis rule of a gather that reads rows of an array of this rank at indices `v`
    along `axis`, such as `d0! d1, v -> v d1`."""
    names = [f"d{i}" for i in range(rank)]
    source = [f"{n}!" if i == axis else n for i, n in enumerate(names)]
    result = ["v" if i == axis else n for i, n in enumerate(names)]
    return f"{' '.join(source)}, v -> {' '.join(result)}"


def with_producer(node: Node, scope: Scope) -> Node | None:
    """Returns one group of a scatter and the elementwise ops or gather that only it reads.

    None if the group would read memory that this or another scatter updates in place: memory larger
    than the updates would be copied to save a copy of the updates.
    """
    chain = [node.args[-1]]
    while is_alias(chain[-1]) and not is_item(chain[-1]):
        chain.append(chain[-1].args[0])
    *views, group = chain
    if not (is_generated(group) or reads_by_data(group)) or not isinstance(group.type, TensorType):
        return None
    users = (node, *views)
    if any(scope.used_outside(n, users) for n in chain) or node.args.count(chain[0]) > 1:
        return None
    body = group.blocks[0] if group.blocks else block_of(group)
    if not all(_is_by_element(n) for n in body.nodes) or group.attrs.get("kind", "loop") != "loop":
        return None
    if any(_is_written(behind(a), node, scope) for a in group.args):
        return None
    own = new_params("s", [a.type for a in node.args[:-1]], body.params)
    (made,) = body.results
    for view in reversed(views):
        made = make(view.op, (made,), view.attrs, hint=view.type)
    b = Builder()
    b.names.update(body.names)
    b.locs.update(body.locs)
    result = b.op(node.op, (*own, made), node.attrs)
    b.locs[result] = scope.block.lines_of([node])
    attrs = {"kind": "loop", "name": "_".join((str(group.attrs.get("name", group.op)), node.op))}
    args = (*node.args[:-1], *group.args)
    return make("fusion", args, attrs, blocks=(b.block((*own, *body.params), (result,)),))


def _is_by_element(node: Node) -> bool:
    is_computed = ops.lookup(node.op).kind == "elementwise"
    return is_computed or repeats(node) or is_number(node) or reads_by_data(node)


def _is_written(memory: Node, node: Node, scope: Scope) -> bool:
    """True if a scatter updates `memory`, and that is larger than the updates of `node`."""
    updates, size = node.args[-1].tensor.size, memory.tensor.size
    if isinstance(updates, int) and isinstance(size, int) and updates >= size:
        return False
    if behind(node.args[0]) is memory and updates != 1:
        return True
    users = [*scope.users(memory)]
    for user in users:
        if is_alias(user):
            users += scope.users(user)
    return any(u is not node and _updated(u) is memory for u in users)


def _updated(step: Node) -> Node | None:
    """Returns the memory that a scatter updates, alone or in a group; None for other steps."""
    if writes_by_data(step):
        return behind(step.args[0])
    if not is_generated(step):
        return None
    (body,) = step.blocks
    made = body.results[0]
    if not writes_by_data(made) or made.args[0] not in body.params:
        return None
    return behind(step.args[body.params.index(made.args[0])])
