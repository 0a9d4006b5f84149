"""Ops of the loop level for a GPU's warps and copy engines.

A kernel for a GPU is a nest of grid loops with serial loops inside. Iterations of grid loops run
concurrently, so none reads what another stores.

A value with the axes warp and lane first is distributed over the threads of the block, and each
thread holds its remaining axes in registers. `shuffle` moves a value between lanes, `mma_sync` is a
matrix instruction of a warp. `warpgroup_mma` is an asynchronous matrix instruction of four warps,
which read shared memory; `warpgroup_wait` waits for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stack.ir.control_ops import result_type
from stack.ir.dim import Dim, mul
from stack.ir.node import Node
from stack.ir.ops import OpDef, Site, define
from stack.ir.types import MEMORY, TensorType, Type

LOOP_LEVEL = frozenset({"loop"})
WARP = 32  # lanes of a warp
GROUP = 4  # warps of a warpgroup
GROUP_ROWS = 64  # rows of a warpgroup instruction
GROUP_COLUMNS = 256  # maximum columns of one
SHUFFLES = ("xor", "up", "down")
MATRIX = 16  # minimum rows, columns and depth of a tensor core matmul
VECTOR_BYTES = 16  # maximum of one access of a thread
COPIES = (4, 8, VECTOR_BYTES)  # sizes of one asynchronous copy, in bytes
SECTOR_BYTES = 32  # granularity of memory writes
LINE_BYTES = 128  # of the cache; the largest piece of a shared memory row that is swizzled


def copy_parts(node: Node) -> tuple[list[Node], list[Node], Node | None]:
    """Target indices, source indices and mask of an `async_copy`."""
    target, source = node.args[:2]
    middle = 2 + target.tensor.rank
    end = middle + source.tensor.rank
    rest = node.args[end:]
    return list(node.args[2:middle]), list(node.args[middle:end]), rest[0] if rest else None


def _copy_infer(site: Site) -> Type:
    if len(site.args) < 2:
        raise site.fail("takes target and source memory, then their indices")
    target, source = site.args[0].tensor, site.args[1].tensor
    if target.space != "shared" or source.space not in MEMORY or target.dtype != source.dtype:
        raise site.fail("copies elements of one type from memory to memory in shared")
    first = 2 + target.rank + source.rank
    if len(site.args) not in (first, first + 1):
        raise site.fail("takes one index for each axis of target and source, optionally a mask")
    index, mask = site.args[2:first], site.args[first:]
    shapes = {a.shape for a in site.args[2:]}
    if any(not a.dtype.is_integer for a in index) or len(shapes) > 1:
        raise site.fail("indices are integers, all scalars or all across the threads")
    if any(a.dtype.kind != "b" for a in mask):
        raise site.fail("the mask is bool, and has the shape of the indices")
    return target


def _run_copy(space: Any, node: Node, run: Any, target: Any, source: Any, *rest: Any) -> Any:
    lanes = int(node.attrs["lanes"])
    end = target.ndim + source.ndim
    to, at, masks = rest[: target.ndim], rest[target.ndim : end], rest[end:]
    if node.args[2].tensor.rank:
        return _copy_across(lanes, target, source, to, at, *masks)
    place = (*(int(i) for i in to[:-1]), slice(int(to[-1]), int(to[-1]) + lanes))
    # memory is used linearly, so writing in place is safe
    if masks and not bool(masks[0]):
        target[place] = 0
    else:
        start = int(at[-1])
        target[place] = source[(*(int(i) for i in at[:-1]), slice(start, start + lanes))]
    return target


def _copy_across(lanes: int, target: Any, source: Any, to: Any, at: Any, mask: Any = True) -> Any:
    """Evaluates an `async_copy`: copies the source elements at indices `at` to the target indices
    `to`, and writes 0 where the mask is False. Raises IndexError unless each run of `lanes`
    elements along the last axis is contiguous on both sides.
    """
    there = np.broadcast_to(mask, np.shape(to[-1]))
    for index in (to, at):
        runs = index[-1].reshape(-1, lanes)[there.reshape(-1, lanes)[:, 0]]
        if (runs != runs[:, :1] + np.arange(lanes)).any():
            raise IndexError(f"a copy of {lanes} elements that are not contiguous")
    clipped = tuple(np.clip(i, 0, s - 1) for i, s in zip(at, source.shape, strict=True))
    target[tuple(to)] = np.where(there, source[clipped], 0)
    return target


def _wait_infer(site: Site) -> Type:
    if any(a.tensor.space != "shared" for a in site.args):
        raise site.fail("waits for copies to memory in shared")
    if site.attrs["pending"] < 0:
        raise site.fail(f"{site.attrs['pending']} groups cannot be pending")
    types: tuple[TensorType, ...] = tuple(a.tensor for a in site.args)
    return result_type(types)


def _run_wait(space: Any, node: Node, run: Any, *memories: Any) -> Any:
    return memories[0] if len(memories) == 1 else memories


def _shuffle_infer(site: Site) -> Type:
    source = site.args[0].tensor
    if source.rank < 2 or source.shape[1] != WARP:
        raise site.fail(f"moves values with the axes warp and lane, not {source}")
    if site.attrs["kind"] not in SHUFFLES or not 0 < site.attrs["by"] < WARP:
        raise site.fail(f"kind is one of {', '.join(SHUFFLES)}, `by` below {WARP}")
    return source


def _run_shuffle(space: Any, node: Node, run: Any, x: Any) -> Any:
    lanes, by = np.arange(WARP), node.attrs["by"]
    moved = {"xor": lanes ^ by, "up": lanes - by, "down": lanes + by}[node.attrs["kind"]]
    return x[:, np.where((moved >= 0) & (moved < WARP), moved, lanes)]


def _sync_infer(site: Site) -> Type:
    a, b, c = (arg.tensor for arg in site.args)
    if not (a.rank == b.rank == c.rank == 4 and a.shape[:2] == b.shape[:2] == c.shape[:2]):
        raise site.fail("operands have the axes warp and lane, and two of registers")
    sizes = (a.shape[2], a.shape[3], b.shape[2], b.shape[3])
    fits = sizes[1] == sizes[2] and c.shape[2:] == (sizes[0], mul(sizes[3], 2))
    if not fits or a.dtype != b.dtype or a.dtype.kind != "f" or c.dtype.kind != "f":
        raise site.fail(f"{a} and {b} do not make {c}")
    return c


def _sync_operations(node: Node) -> Dim:
    depth = mul(4, node.args[0].shape[3])  # of the four lanes that share a row
    return mul(mul(2, depth), node.tensor.size)


def _run_sync(space: Any, node: Node, run: Any, a: Any, b: Any, c: Any) -> Any:
    warps, _, rows, depth = a.shape
    a = a.reshape(warps, 8, 4, rows, depth).astype(c.dtype)
    b = b.reshape(warps, 8, 4, depth, -1).astype(c.dtype)
    # lanes g, t of the left operand; h, t of the right, where h is the column
    made = np.einsum("wgtrk,whtkj->wgrjh", a, b)
    made = made.reshape(warps, 8, rows, -1, 4, 2).transpose(0, 1, 4, 2, 3, 5)
    return c + made.reshape(c.shape)


def group_operands(node: Node) -> tuple[list[Node], list[Node]]:
    """The left and the right operand of a `warpgroup_mma`.

    Each is a memory with the first row and column of a warpgroup; the left one may be a tile
    instead.
    """
    return list(node.args[1:-3]), list(node.args[-3:])


def _group_infer(site: Site) -> Type:
    c, depth = site.args[0].tensor, site.attrs["depth"]
    if len(site.args) not in (5, 7):
        raise site.fail("takes sums, a tile or a matrix on the left, a matrix on the right")
    if c.rank != 4 or c.dtype.kind != "f":
        raise site.fail(f"adds to floats with the axes warp, lane and two of registers, not {c}")
    for memory in (site.args[i].tensor for i in {len(site.args) - 3, max(1, len(site.args) - 6)}):
        if memory.space != "tile" and (memory.space != "shared" or memory.rank != 2):
            raise site.fail(f"reads matrices in shared memory, not {memory}")
    if len(site.args) == 5 and site.args[1].shape[2:] != (c.shape[2], depth // 4):
        raise site.fail(f"{site.args[1].type} is no left operand of depth {depth} for {c}")
    return c


def _group_operations(node: Node) -> Dim:
    return mul(mul(2, node.attrs["depth"]), node.tensor.size)


def _run_group(space: Any, node: Node, run: Any, c: Any, *operands: Any) -> Any:
    warps, lanes, rows, columns = (int(s) for s in c.shape)
    depth = int(node.attrs["depth"])
    warp, lane = np.arange(warps)[:, None, None], np.arange(lanes)[None, :, None]
    r, k = np.arange(rows), np.arange(columns)
    row = warp % GROUP * 16 + lane // 4 + r % 2 * 8 + r // 2 * GROUP_ROWS
    column = np.broadcast_to(lane % 4 * 2 + k % 2 + k // 2 * 8, (warps, lanes, columns))
    right = _matrix_at(operands[-3:], column, depth, node.attrs["transposed"][1])
    if len(operands) == 4:
        place = np.arange(depth)  # column number; lane (of four per row) and register follow
        own = np.arange(lanes)[:, None] // 4 * 4 + place % 8 // 2
        left = operands[0][:, own, :, place // 8 * 2 + place % 2].transpose(2, 0, 3, 1)
    else:
        left = _matrix_at(operands[:3], row, depth, node.attrs["transposed"][0])
    return c + np.einsum("wlrk,wlck->wlrc", left.astype(c.dtype), right.astype(c.dtype))


def _run_nothing(space: Any, node: Node, run: Any, x: Any) -> Any:
    return x


def _matrix_at(operand: Any, place: Any, depth: int, transposed: bool) -> Any:
    """Reads the rows `place` (columns if `transposed`) of an operand of `warpgroup_mma`, with
    `depth` contracted elements each. Indices count from the operand's first row and column.
    """
    memory, row, column = operand
    along = np.arange(depth)
    if transposed:
        return memory[row[..., None, None] + along, (column[..., None] + place)[..., None]]
    return memory[(row[..., None] + place)[..., None], column[..., None, None] + along]


def _matrix_infer(site: Site) -> Type:
    memory, hint = site.args[0].tensor, site.hint
    if memory.space != "shared" or memory.rank != 2:
        raise site.fail(f"reads a matrix in shared memory, not {memory}")
    if not isinstance(hint, TensorType) or hint.dtype != memory.dtype or hint.rank != 4:
        raise site.fail("the result type must be given: warp, lane, and two axes of registers")
    if any(a.tensor.shape != hint.shape[:2] or not a.dtype.is_integer for a in site.args[1:]):
        raise site.fail("row and column are an integer in each thread")
    return hint


def _run_matrix(space: Any, node: Node, run: Any, memory: Any, row: Any, column: Any) -> Any:
    _, lanes, rows, columns = (int(s) for s in node.shape)  # pyright: ignore[reportArgumentType]
    lane, depth = np.arange(lanes)[:, None, None], np.arange(columns)
    down = row[:, :, None, None] + lane // 4 + 8 * np.arange(rows)[:, None]
    across = column[:, :, None, None] + lane % 4 * 2 + depth // 2 * 8 + depth % 2
    return memory[across, down] if node.attrs["transposed"] else memory[down, across]


define(
    OpDef(
        "load_matrix",
        "rows of a matrix in shared memory in the layout of `mma_sync`, the depth last, from the"
        " warp's first row and column on; `transposed` if memory has the depth first",
        "memory",
        _matrix_infer,
        evaluate=_run_matrix,
        attrs=("transposed: bool",),
        arity=3,
        levels=LOOP_LEVEL,
    )
)
define(
    OpDef(
        "shuffle",
        "the value of another lane: its number is xor, minus (up) or plus (down) `by`; the lane's"
        " own value if there is no such lane",
        "warp",
        _shuffle_infer,
        evaluate=_run_shuffle,
        attrs=("kind: str", "by: int"),
        arity=1,
        levels=LOOP_LEVEL,
    )
)
define(
    OpDef(
        "mma_sync",
        "c + a @ b on the tiles of each warp in the layout of m16n8k16 instructions: lane 4 g + t"
        " has rows g of a and c, columns g of b, and pairs t of the depth and of the columns of c",
        "contraction",
        _sync_infer,
        evaluate=_run_sync,
        operations=_sync_operations,
        arity=3,
        levels=LOOP_LEVEL,
    )
)
define(
    OpDef(
        "warpgroup_mma",
        "c + a @ b on the tiles of each warpgroup, in the layout of instructions of 64 rows: b, and"
        " a unless it is a tile, are in shared memory from a row and a column on, `transposed` if"
        " memory has the depth first. Asynchronous: complete after a `warpgroup_wait`",
        "contraction",
        _group_infer,
        evaluate=_run_group,
        operations=_group_operations,
        attrs=("depth: int", "transposed"),
        at_least=5,
        levels=LOOP_LEVEL,
    )
)
define(
    OpDef(
        "warpgroup_wait",
        "wait until at most `pending` of the newest `warpgroup_mma` are incomplete",
        "warp",
        lambda site: site.args[0].tensor,
        evaluate=_run_nothing,
        attrs=("pending: int",),
        arity=1,
        levels=LOOP_LEVEL,
    )
)
define(
    OpDef(
        "async_copy",
        "asynchronously copy `lanes` elements along the last axes, zeros where the mask is false;"
        " with an index for each thread, runs of that many elements. The copies of all threads"
        " are one group",
        "memory",
        _copy_infer,
        evaluate=_run_copy,
        attrs=("lanes: int",),
        at_least=2,
        levels=LOOP_LEVEL,
    )
)
define(
    OpDef(
        "async_wait",
        "wait until at most `pending` of the newest groups of copies are incomplete",
        "memory",
        _wait_infer,
        evaluate=_run_wait,
        attrs=("pending: int",),
        at_least=1,
        levels=LOOP_LEVEL,
    )
)
