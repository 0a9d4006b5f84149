"""Kernels: the tile and loop levels. Memory is a value, so data flow defines the order of accesses.

A `kernel` node runs one block. The block's parameters are the inputs and then the outputs, all
memory `in global`; its results are the outputs after the last store. With `updates`, the number of
an input, the first output shares that input's memory and starts with its contents. `store` returns
the memory after the store, and loops carry it, so a load that must see a store reads the memory
that the store returned. Memory is used linearly: after a store, the older version is dead.

At the tile level, one `loop` of kind "grid" for each grid axis encloses operations on tiles
(`f32<1x64>`). At the loop level, values are scalars (`f32[]`) and short vectors (`f32<16>`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from stack.ir.bounds import check_index
from stack.ir.control_ops import result_type
from stack.ir.elementwise_ops import common_shape, elementwise_rule
from stack.ir.node import Block, Node
from stack.ir.ops import OpDef, Site, define
from stack.ir.types import BOOL, MEMORY, TensorType, TupleType, Type

KERNEL_LEVELS = frozenset({"tile", "loop"})
LOOP_KINDS = ("grid", "parallel", "serial", "unroll", "vector", "branch")


def _kernel_infer(site: Site) -> Type:
    if len(site.blocks) != 1 or site.attrs["level"] not in KERNEL_LEVELS:
        raise site.fail("has one block, at level tile or loop")
    block = site.blocks[0]
    inputs, outputs = block.params[: len(site.args)], block.params[len(site.args) :]
    for arg, p in zip(site.args, inputs, strict=True):
        if p.tensor != TensorType(arg.dtype, arg.shape, "global"):
            raise site.fail(f"parameter %{p.attrs['name']} is {p.type}, not {arg.type} in global")
    if not outputs or tuple(p.type for p in outputs) != block.type:
        raise site.fail(
            "the block returns its output memory, one for each parameter past the inputs"
        )
    updated: int | None = site.attrs.get("updates")
    if updated is not None:
        if not 0 <= updated < len(inputs) or inputs[updated].type != outputs[0].type:
            raise site.fail(f"operand {updated}, which it updates, is not of its result's type")
    return result_type(tuple(TensorType(p.dtype, p.shape) for p in outputs))


def _loop_infer(site: Site) -> Type:
    if site.attrs["kind"] not in LOOP_KINDS:
        raise site.fail(f"kind {site.attrs['kind']!r} is not one of {', '.join(LOOP_KINDS)}")
    if len(site.blocks) != 1 or not site.blocks[0].params:
        raise site.fail("has one block whose first parameter is the index, as in (%i < 128, ...)")
    index, *carried = site.blocks[0].params
    if "extent" not in index.attrs:
        raise site.fail("the first parameter of the block is the index, as in (%i < 128, ...)")
    if site.attrs["kind"] == "branch" and (
        index.attrs["extent"] != 1 or not site.attrs.get("limited")
    ):
        raise site.fail("a branch has one iteration at most, between its limits")
    limits, init = loop_parts(site.args, site.attrs)
    if site.attrs.get("online") and (
        site.attrs["kind"] != "serial" or not any(map(_is_value, init))
    ):
        raise site.fail("an online loop is serial, and carries values besides memory")
    if any(a.type != index.type for a in limits):
        raise site.fail(f"a limited loop takes its first step and its end first, as {index.type}")
    types = [a.type for a in init]
    if [p.type for p in carried] != types or list(site.blocks[0].type) != types or not types:
        raise site.fail(f"the block carries and returns ({', '.join(map(str, types))})")
    return result_type(tuple(types))


def _is_value(node: Node) -> bool:
    return node.tensor.space not in MEMORY


def loop_parts(
    args: Sequence[Node], attrs: Mapping[str, Any]
) -> tuple[Sequence[Node], Sequence[Node]]:
    """Splits the operands of a loop into its limits and its carried values.

    Limits are the first step and the one past the last, within 0 and the extent. A loop over its
    whole extent has no limits.
    """
    count = 2 if attrs.get("limited") else 0
    return args[:count], args[count:]


def iterations(loop: Node) -> int:
    """Returns an upper bound of the trip count of a kernel's loop: of `[first, end)` if `end` is
    `first` plus a constant, else the extent of its variable.
    """
    extent = int(loop.blocks[0].params[0].attrs["extent"])
    limits, _ = loop_parts(loop.args, loop.attrs)
    if not limits:
        return extent
    first, end = limits
    # `first + n`, or the smaller of that and the extent
    for past in end.args if end.op == "min" else (end,):
        if past.op == "add" and past.args[0] is first and past.args[1].op == "const":
            return min(extent, int(past.args[1].attrs["value"].array))
    return extent


def _memory(site: Site) -> TensorType:
    if not site.args or site.args[0].tensor.space not in MEMORY:
        raise site.fail("operand 0 is memory (in global, shared or local)")
    return site.args[0].tensor


def _check_access(site: Site, memory: TensorType, index: Sequence[Node], tile: TensorType) -> None:
    if any(not i.dtype.is_integer for i in index):
        raise site.fail("indices are integers, one for each axis of the memory")
    if all(i.tensor.rank == 0 for i in index):
        if tile.rank > memory.rank:
            raise site.fail(f"{tile} has more axes than {memory}")
    elif common_shape(site, tuple(index)) != tile.shape:
        raise site.fail(f"a read at tiles of indices gives one element each, not {tile}")


def access_parts(node: Node) -> tuple[list[Node], Node | None, Node | None]:
    """Splits the operands of a `load` or `store`: returns the index operands, the mask, and the
    value for masked-off elements. Each of the last two is None if the node lacks it.
    """
    first = 1 if node.op == "load" else 2
    rank = node.args[0].tensor.rank
    index = list(node.args[first : first + rank])
    rest = node.args[first + rank :]
    return index, rest[0] if rest else None, rest[1] if len(rest) > 1 else None


def _load_infer(site: Site) -> Type:
    memory = _memory(site)
    tile = site.hint
    if not isinstance(tile, TensorType) or tile.dtype != memory.dtype:
        raise site.fail("the result type must be given, with the memory's element type")
    rest = site.args[1 + memory.rank :]
    if len(site.args) < 1 + memory.rank or len(rest) not in (0, 2):
        raise site.fail("takes memory, one index for each axis, then optionally mask and other")
    _check_access(site, memory, site.args[1 : 1 + memory.rank], tile)
    if rest and (rest[0].dtype != BOOL or rest[1].dtype != memory.dtype):
        raise site.fail("the mask is bool, `other` has the memory's element type")
    return tile


def _store_infer(site: Site) -> Type:
    memory = _memory(site)
    rest = site.args[2 + memory.rank :]
    if len(site.args) < 2 + memory.rank or len(rest) > 1:
        raise site.fail("takes memory, value, one index for each axis, then optionally a mask")
    value = site.args[1].tensor
    if value.dtype != memory.dtype or (rest and rest[0].dtype != BOOL):
        raise site.fail("the value has the memory's element type, the mask is bool")
    _check_access(site, memory, site.args[2 : 2 + memory.rank], value)
    return memory


def _alloc_infer(site: Site) -> Type:
    hint = site.hint
    if not isinstance(hint, TensorType) or hint.space not in ("shared", "local"):
        raise site.fail("the result is memory in shared or local")
    if any(a.op != "var" or "extent" not in a.attrs for a in site.args):
        raise site.fail("operands are indices of the loops that it is inside of")
    return hint


def _fma_infer(site: Site) -> Type:
    if len({a.dtype for a in site.args}) != 1:
        raise site.fail("operands have one element type")
    space = "tile" if any(a.tensor.space == "tile" for a in site.args) else "value"
    return TensorType(site.args[0].dtype, common_shape(site, site.args), space)


def _var_infer(site: Site) -> Type:
    if site.hint is None:
        raise site.fail("the type must be given")
    return site.hint


# ---- evaluation


def _run_kernel(space: Any, node: Node, run: Any, *args: Any) -> Any:
    types = node.type.items if isinstance(node.type, TupleType) else (node.type,)
    # garbage, so that a missing store is noticed
    outputs = [np.full(t.shape, _garbage(t), dtype=t.dtype.numpy) for t in types]
    if "updates" in node.attrs:
        outputs[0][...] = args[node.attrs["updates"]]
    results = run(node.blocks[0], [*args, *outputs])
    return results if isinstance(node.type, TupleType) else results[0]


def _garbage(type_: TensorType) -> Any:
    if type_.dtype.kind in "fc":
        return np.nan
    return 77 if type_.dtype.kind != "b" else True


def _run_loop(space: Any, node: Node, run: Any, *carried: Any) -> Any:
    block: Block = node.blocks[0]
    steps = range(block.params[0].attrs["extent"])
    if node.attrs.get("limited"):
        steps = range(*(int(limit) for limit in carried[:2]))
        carried = carried[2:]
    for i in steps:
        carried = run(block, (np.int64(i), *carried))
    return carried if isinstance(node.type, TupleType) else carried[0]


def _sizes(type_: TensorType) -> tuple[int, ...]:
    return tuple(d for d in type_.shape if isinstance(d, int))


def _place(node: Node, memory: Any, args: Sequence[Any], tile: TensorType) -> tuple[Any, Any]:
    """Evaluates the indices of a `load` or `store`: returns an index array for each axis of the
    memory, clipped into bounds, and the mask. Raises IndexError if an unmasked index is out of
    bounds.
    """
    first = 1 if node.op == "load" else 2
    index = list(args[first : first + memory.ndim])
    mask = args[first + memory.ndim] if len(args) > first + memory.ndim else None
    if all(i.tensor.rank == 0 for i in node.args[first : first + memory.ndim]):
        lead = memory.ndim - tile.rank
        for axis in range(tile.rank):
            view = [-1 if k == axis else 1 for k in range(tile.rank)]
            index[lead + axis] = index[lead + axis] + np.arange(_sizes(tile)[axis]).reshape(view)
    if node.attrs.get("clip"):
        inside = [(i >= 0) & (i < s) for i, s in zip(index, memory.shape, strict=True)]
        for test in inside:
            mask = test if mask is None else mask & test
    check_index(index, memory.shape, f"a {node.op}", mask)
    if "vector" in node.attrs:
        _check_vector(node, index, memory.shape, mask, _sizes(tile))
    if mask is None:
        return tuple(index), None
    clipped = [np.clip(i, 0, max(s - 1, 0)) for i, s in zip(index, memory.shape, strict=True)]
    return tuple(clipped), np.broadcast_to(mask, _sizes(tile))


def _check_vector(
    node: Node, index: Sequence[Any], extents: Sequence[int], mask: Any, shape: tuple[int, ...]
) -> None:
    """Raises IndexError if the elements of a vector are not contiguous and aligned."""
    vector: int = node.attrs["vector"]
    place = np.zeros(shape, np.int64)
    for held, extent in zip(index, extents, strict=True):
        place = place * extent + held
    groups = place.reshape(-1, vector)
    there = np.broadcast_to(True if mask is None else mask, shape).reshape(-1, vector)
    wrong = (groups != groups[:, :1] + np.arange(vector)).any(1) | (groups[:, 0] % vector != 0)
    if (wrong & there[:, 0]).any() or (there != there[:, :1]).any():
        raise IndexError(f"a {node.op} of {vector} elements that are not contiguous and aligned")


def _run_load(space: Any, node: Node, run: Any, memory: Any, *rest: Any) -> Any:
    place, mask = _place(node, memory, (memory, *rest), node.tensor)
    if mask is None:
        return memory[place]
    other = 0 if len(rest) == memory.ndim else rest[-1]
    read = memory[place] if memory.size else other
    return cast("Any", np.where(mask, read, other))


def _run_store(space: Any, node: Node, run: Any, memory: Any, value: Any, *rest: Any) -> Any:
    # memory is used linearly, so writing in place is safe
    place, mask = _place(node, memory, (memory, value, *rest), node.args[1].tensor)
    if mask is None:
        memory[place] = value
    else:
        shape = _sizes(node.args[1].tensor)
        picked = tuple(np.broadcast_to(p, shape)[mask] for p in place)
        memory[picked] = np.broadcast_to(value, shape)[mask]
    return memory


def _run_alloc(space: Any, node: Node, run: Any, *inside: Any) -> Any:
    return np.full(node.shape, _garbage(node.tensor), dtype=node.dtype.numpy)


def _run_fma(space: Any, node: Node, run: Any, a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def _again_infer(site: Site) -> Type:
    return site.args[0].type


def _run_fetch(space: Any, node: Node, run: Any, x: Any, later: Any) -> Any:
    return x


def _run_again(space: Any, node: Node, run: Any, x: Any) -> Any:
    return x


def _memory_op(name: str, doc: str, infer: Any, evaluate: Any, **more: Any) -> None:
    define(OpDef(name, doc, "memory", infer, evaluate=evaluate, levels=KERNEL_LEVELS, **more))


define(
    OpDef(
        "kernel",
        "run one generated kernel; its block is at level `level`",
        "group",
        _kernel_infer,
        evaluate=_run_kernel,
        attrs=(
            *("name: str", "level: str", "ops?", "flops?", "at?", "updates?"),
            *("warps?", "stages?", "programs?", "threads?", "lanes?", "operands?", "padded?"),
        ),
    )
)
define(
    OpDef(
        "loop",
        "repeat the block for i = 0, 1, ...; `kind` names what runs the iterations (a `branch` has"
        " at most one). Hints: `ahead` is the number of iterations whose loads are in flight at"
        " a time; `staged` loads tiles through shared memory; with `group`, two nested grid loops"
        " run tile by tile: all inner iterations for that many outer ones. `online`: iterations"
        " rescale the carried values before they add to them, associatively, so any iterations may"
        " be combined. `overlap`: iterations that store to one element store the same value",
        "control",
        _loop_infer,
        evaluate=_run_loop,
        attrs=("kind: str", "limited?", "ahead?", "staged?", "group?", "online?", "overlap?"),
        levels=KERNEL_LEVELS,
        closed=False,
    )
)
_memory_op(
    "load",
    "read a block at scalar indices (aligned to the last axes), or one element at each index of a"
    " tile; masked-off lanes read `other`. With `clip`, elements outside of the memory read as 0."
    " `evict` (first, last) is a cache eviction hint. With `vector`, each group of that many"
    " elements along the last axis of the tile is contiguous and aligned in memory",
    _load_infer,
    _run_load,
    attrs=("clip?", "evict?", "vector?"),
)
_memory_op(
    "store",
    "write the elements that `load` would read; returns the memory after the store",
    _store_infer,
    _run_store,
    attrs=("clip?", "evict?", "vector?"),
)
_memory_op(
    "again",
    "the same tile, as a new value: values computed from it are recomputed instead of kept live",
    _again_infer,
    _run_again,
)
_memory_op(
    "fetch",
    "the first block, unchanged; a hint to prefetch the memory of the second, which is read later",
    _again_infer,
    _run_fetch,
    arity=2,
)
_memory_op(
    "alloc",
    "memory of one program, by name; one for each iteration of the loops whose indices it takes",
    _alloc_infer,
    _run_alloc,
    attrs=("name: str", "swizzle?"),
)
define(
    OpDef(
        "fma",
        "a * b + c, rounded once if the machine can",
        "elementwise",
        _fma_infer,
        rule=elementwise_rule,
        evaluate=_run_fma,
        flops=2,
        arity=3,
        levels=KERNEL_LEVELS,
    )
)
define(
    OpDef(
        "var",
        "a variable of an open block: a loop index (with `extent`) or a carried value",
        "input",
        _var_infer,
        attrs=("name", "extent?"),
        arity=0,
        levels=KERNEL_LEVELS,
    )
)
