"""Products of what other GPUs have: all-gather + GEMM and GEMM + reduce-scatter, one kernel each.

Both go over peer memory, see `peer_triton`. The first reads rows of x where they lie, its own
before it has heard of others, so that waiting hides behind the first product. The second computes
what others need first, puts each tile where it is summed, and sums its own rows at the end, in the
order of ranks: the same bits in every run.

Programs with one number deal with the same tiles on all ranks, so they wait for each other alone.
Halves alternate as they do for collectives. Checked in Triton's interpreter, rank after rank, and
compiled for Hopper; not yet run on GPUs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from stack.errors import UsageError
from stack.ops.collectives.peer_triton import LANE, MOST, WARPS, PeerMemory, _copy, _meet, _memory

Tensor = torch.Tensor
TILE = {"BM": 128, "BN": 128, "BK": 64}


@triton.jit
def publish(
    x, data, turns, size, half, RANK: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr
):  # fmt: skip
    """Copy the input to where all see it."""
    begin = tl.multiple_of(tl.cast(tl.load(turns) % 2, tl.int64) * half, 16)
    own = _memory(data, RANK, tl.pointer_type(x.dtype.element_ty)) + begin
    _copy(own, x, tl.program_id(0), size, BLOCK, PROGRAMS)


@triton.jit
def _product(
    x, w, m, n, k, row, column, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """A tile of x [m, k] times w [k, n]."""
    rows, columns = row + tl.arange(0, BM), column + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        depth = start + tl.arange(0, BK)
        left = (rows < m)[:, None] & (depth < k)[None, :]
        right = (depth < k)[:, None] & (columns < n)[None, :]
        a = tl.load(x + rows.to(tl.int64)[:, None] * k + depth[None, :], mask=left, other=0)
        b = tl.load(w + depth.to(tl.int64)[:, None] * n + columns[None, :], mask=right, other=0)
        total = tl.dot(a, b, total)
    return total


@triton.jit
def _place(m, n, row, column, BM: tl.constexpr, BN: tl.constexpr):
    """Where a tile lies in [m, n], and what of it is inside."""
    rows, columns = row + tl.arange(0, BM), column + tl.arange(0, BN)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    return rows.to(tl.int64)[:, None] * n + columns[None, :], inside


@triton.jit
def _passed(turns, pid, turn, PROGRAMS: tl.constexpr, MOST_: tl.constexpr):
    """One turn more, for programs that this call does without too."""
    counters = pid + PROGRAMS * tl.arange(0, MOST_ // PROGRAMS)
    tl.store(turns + counters, turn + 1 + tl.zeros_like(counters))


@triton.jit
def gather_gemm(
    w, out, data, flags, turns, m, n, k, half, RANK: tl.constexpr, WORLD: tl.constexpr,
    PEERS: tl.constexpr, PROGRAMS: tl.constexpr, MOST_: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The rows of all ranks, m each, times w; this rank's own come first."""
    pid = tl.program_id(0)
    turn = tl.load(turns + pid)
    begin = tl.multiple_of(tl.cast(turn % 2, tl.int64) * half, 16)
    kind = tl.pointer_type(w.dtype.element_ty)
    across = tl.cdiv(n, BN)
    for step in tl.static_range(WORLD):  # pyright: ignore
        peer = (RANK + step) % WORLD
        if step == 1:
            _meet(flags, pid, 0, turn + 1, RANK, WORLD, PEERS)
        x = _memory(data, peer, kind) + begin
        target = out + peer * tl.cast(m, tl.int64) * n
        for tile in range(pid, tl.cdiv(m, BM) * across, PROGRAMS):
            row, column = tile // across * BM, tile % across * BN
            total = _product(x, w, m, n, k, row, column, BM, BN, BK)
            place, inside = _place(m, n, row, column, BM, BN)
            tl.store(target + place, total.to(out.dtype.element_ty), mask=inside)
    _passed(turns, pid, turn, PROGRAMS, MOST_)


@triton.jit
def gemm_scatter(
    x, w, out, data, flags, turns, m, n, k, half, RANK: tl.constexpr, WORLD: tl.constexpr,
    PEERS: tl.constexpr, PROGRAMS: tl.constexpr, MOST_: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """This rank's m rows of the sum over ranks of x w; each x has the rows of all ranks."""
    pid = tl.program_id(0)
    turn = tl.load(turns + pid)
    begin = tl.multiple_of(tl.cast(turn % 2, tl.int64) * half, 16)
    kind = tl.pointer_type(x.dtype.element_ty)
    across = tl.cdiv(n, BN)
    size = tl.cast(m, tl.int64) * n
    for step in tl.static_range(WORLD):  # pyright: ignore
        peer = (RANK + 1 + step) % WORLD  # its own come last
        part = x + peer * tl.cast(m, tl.int64) * k
        target = _memory(data, peer, kind) + begin + RANK * size
        for tile in range(pid, tl.cdiv(m, BM) * across, PROGRAMS):
            row, column = tile // across * BM, tile % across * BN
            total = _product(part, w, m, n, k, row, column, BM, BN, BK)
            place, inside = _place(m, n, row, column, BM, BN)
            tl.store(target + place, total.to(x.dtype.element_ty), mask=inside)
    _meet(flags, pid, 0, turn + 1, RANK, WORLD, PEERS)
    own = _memory(data, RANK, kind) + begin
    for tile in range(pid, tl.cdiv(m, BM) * across, PROGRAMS):
        row, column = tile // across * BM, tile % across * BN
        place, inside = _place(m, n, row, column, BM, BN)  # pyright: ignore
        total = tl.zeros((BM, BN), tl.float32)
        for source in tl.static_range(WORLD):  # pyright: ignore
            total += tl.load(own + source * size + place, mask=inside, other=0).to(tl.float32)
        tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)
    _passed(turns, pid, turn, PROGRAMS, MOST_)


class PeerProducts:
    """Products over the peer memory of a host's GPUs.

    Raises UsageError for operands that do not fit each other or the memory, or are not dense.
    """

    def __init__(self, peers: PeerMemory) -> None:
        self.peers = peers

    def gather_gemm(self, x: Tensor, w: Tensor) -> Tensor:
        """The inputs [m, k] of all ranks one after the other, times this rank's w [k, n]."""
        peers, (m, k), n = self.peers, x.shape, w.shape[1]
        self._check(x, w, x.nbytes)
        block = WARPS * 32 * LANE // x.element_size()
        programs = min(MOST.value, triton.next_power_of_2(triton.cdiv(x.numel(), block)))
        publish[(programs,)](
            x, peers.tables[0], peers.turns, x.numel(), self._half(x), RANK=peers.rank,
            BLOCK=block, PROGRAMS=programs, num_warps=WARPS,  # pyright: ignore
        )  # fmt: skip
        out = x.new_empty(m * peers.world, n)
        self._launch(gather_gemm, (w, out), m, n, k, self._half(x))
        return out

    def gemm_scatter(self, x: Tensor, w: Tensor) -> Tensor:
        """This rank's rows of the sum over all ranks of x [rows, k] times w [k, n]."""
        peers, (rows, k), n = self.peers, x.shape, w.shape[1]
        if rows % peers.world:
            raise UsageError(f"{rows} rows do not divide by {peers.world} ranks")
        self._check(x, w, rows * n * x.element_size())
        out = x.new_empty(rows // peers.world, n)
        self._launch(gemm_scatter, (x, w, out), rows // peers.world, n, k, self._half(x))
        return out

    def _check(self, x: Tensor, w: Tensor, size: int) -> None:
        if x.dtype != w.dtype or x.shape[1] != w.shape[0]:
            raise UsageError(f"x {list(x.shape)} of {x.dtype}, w {list(w.shape)} of {w.dtype}")
        if not (x.is_contiguous() and w.is_contiguous()):
            raise UsageError("x and w are dense")
        if size > self.peers.half:
            raise UsageError(f"{size} bytes do not fit the {self.peers.half} of this peer memory")

    def _half(self, x: Tensor) -> int:
        return self.peers.half // x.element_size()

    def _launch(
        self, kernel: Any, operands: tuple[Tensor, ...], m: int, n: int, k: int, half: int
    ) -> None:
        peers = self.peers
        tiles = triton.cdiv(m, TILE["BM"]) * triton.cdiv(n, TILE["BN"])
        programs = min(MOST.value, triton.next_power_of_2(max(1, tiles)))
        kernel[(programs,)](
            *operands, *peers.tables, peers.turns, m, n, k, half, RANK=peers.rank,
            WORLD=peers.world, PEERS=triton.next_power_of_2(peers.world), PROGRAMS=programs,
            MOST_=MOST.value, **TILE, num_warps=8, num_stages=3,
        )  # fmt: skip
