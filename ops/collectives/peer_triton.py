"""Collectives in one kernel over peer memory: each GPU reads what the others have published.

A rank copies its input into memory that all GPUs of the host see, tells the others, waits until
they have told it, and reads what it needs from them: no library, no copy engine, one launch. What
limits them: a few microseconds for the flags where little is sent, the bandwidth of the links of
one GPU where much is. The one-shot all-reduce reads all of every rank's input; the two-shot one
reduces a part on each rank and then collects the parts, which is less from three ranks on.

Programs with one number on all ranks deal with the same elements, so they wait for each other
alone, not for whole grids. Published data alternates between two halves: who has passed the flags
of a call has read all of the call before, so no second round of flags is needed. The half is told
by a counter in memory, so that a CUDA graph can hold a call.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from stack.errors import UsageError

Tensor = torch.Tensor
MOST: tl.constexpr = tl.constexpr(128)  # programs, which wait for others: all must run at once
WARPS = 16
LANE = 32  # bytes that a thread has on its way


@triton.jit
def _meet(flags, pid, phase, turn, RANK: tl.constexpr, WORLD: tl.constexpr, PEERS: tl.constexpr):
    """Wait until the programs of this number on all ranks have come to this turn.

    A flag holds the last turn that its rank has come to, so none is ever taken back. Peers are
    told all at once, a thread for each.
    """
    tl.debug_barrier()  # all threads have written
    peers = tl.arange(0, PEERS)
    there = peers < WORLD
    place = (phase * MOST + pid) * WORLD
    tables = tl.load(flags + peers, mask=there, other=0).to(tl.pointer_type(tl.int32))
    now = turn + tl.zeros_like(peers)
    tl.atomic_xchg(tables + place + RANK, now, mask=there, sem="release", scope="sys")
    own = tl.load(flags + RANK).to(tl.pointer_type(tl.int32)) + place
    late = 1
    while late > 0:
        seen = tl.atomic_add(own + peers, 0, mask=there, sem="acquire", scope="sys")
        late = tl.max(tl.where(there & (seen - now < 0), 1, 0), 0)
    tl.debug_barrier()


@triton.jit
def _memory(data, rank, kind):
    """Where a rank's data begins, which is aligned."""
    return tl.multiple_of(tl.load(data + rank).to(kind), 16)


@triton.jit
def _copy(target, source, pid, part, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Copy this program's share of a part."""
    for start in range(pid * BLOCK, part, PROGRAMS * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < part), mask=at < part)


@triton.jit
def _publish(
    x, data, flags, turns, pid, part, half, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, PEERS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Copy the input, cut into parts, to where all see it; gives where this call's half begins."""
    turn = tl.load(turns + pid)
    begin = tl.multiple_of(tl.cast(turn % 2, tl.int64) * half, 16)
    own = _memory(data, RANK, tl.pointer_type(x.dtype.element_ty)) + begin
    for piece in tl.static_range(PARTS):  # pyright: ignore
        first = piece * tl.cast(part, tl.int64)
        _copy(own + first, x + first, pid, part, BLOCK, PROGRAMS)
    tl.debug_barrier()
    # for those that this call does without, too: all halves alternate together
    counters = pid + PROGRAMS * tl.arange(0, MOST // PROGRAMS)
    tl.store(turns + counters, turn + 1 + tl.zeros_like(counters))
    _meet(flags, pid, 0, turn + 1, RANK, WORLD, PEERS)
    return begin


@triton.jit
def _sum(data, place, seen, kind, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    """The sum over all ranks at some places, in the order of ranks: the same bits everywhere."""
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(WORLD):  # pyright: ignore
        memory = _memory(data, peer, kind)
        total += tl.load(memory + place, mask=seen, other=0).to(tl.float32)
    return total


@triton.jit
def reduce_part(
    x, out, data, flags, turns, part, half, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, PEERS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """One part, summed: with one part a one-shot all-reduce, with one a rank a reduce-scatter."""
    pid = tl.program_id(0)
    begin = _publish(
        x, data, flags, turns, pid, part, half, PARTS, RANK, WORLD, PEERS, BLOCK, PROGRAMS
    )
    kind = tl.pointer_type(x.dtype.element_ty)
    offset = begin + (RANK % PARTS) * tl.cast(part, tl.int64)
    for start in range(pid * BLOCK, part, PROGRAMS * BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = _sum(data, offset + at, at < part, kind, WORLD, BLOCK)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=at < part)


@triton.jit
def collect(
    x, out, data, flags, turns, part, half, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, PEERS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """A part of every rank: with one part an all-gather, with one a rank an all-to-all."""
    pid = tl.program_id(0)
    begin = _publish(
        x, data, flags, turns, pid, part, half, PARTS, RANK, WORLD, PEERS, BLOCK, PROGRAMS
    )
    kind = tl.pointer_type(x.dtype.element_ty)
    offset = begin + (RANK % PARTS) * tl.cast(part, tl.int64)
    for step in tl.static_range(WORLD):  # pyright: ignore
        peer = (RANK + step) % WORLD  # not all read from one
        memory = _memory(data, peer, kind) + offset
        target = out + peer * tl.cast(part, tl.int64)
        _copy(target, memory, pid, part, BLOCK, PROGRAMS)


@triton.jit
def two_shot(
    x, out, data, flags, turns, part, half, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, PEERS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """An all-reduce: this rank's part is summed into its own copy, then all parts are collected."""
    pid = tl.program_id(0)
    begin = _publish(
        x, data, flags, turns, pid, part, half, PARTS, RANK, WORLD, PEERS, BLOCK, PROGRAMS
    )
    kind = tl.pointer_type(x.dtype.element_ty)
    wide = tl.cast(part, tl.int64)
    own = _memory(data, RANK, kind) + begin + RANK * wide
    for start in range(pid * BLOCK, part, PROGRAMS * BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = _sum(data, begin + RANK * wide + at, at < part, kind, WORLD, BLOCK)
        tl.store(own + at, total.to(x.dtype.element_ty), mask=at < part)
    _meet(flags, pid, 1, tl.load(turns + pid), RANK, WORLD, PEERS)
    for step in tl.static_range(WORLD):  # pyright: ignore
        peer = (RANK + step) % WORLD
        memory = _memory(data, peer, kind) + begin + peer * wide
        _copy(out + peer * wide, memory, pid, part, BLOCK, PROGRAMS)


class PeerMemory:
    """Memory of one host's GPUs that they all see, and the collectives over it.

    Args:
        size: the most bytes of an input.
        group: of processes, one for each GPU of a host that its links reach.

    Raises UsageError for inputs that are larger, not dense, or do not divide.
    """

    def __init__(self, size: int, group: dist.ProcessGroup | None = None) -> None:
        memory: Any = import_module("torch.distributed._symmetric_memory")
        self.group = group or dist.group.WORLD
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        device = torch.device("cuda", torch.cuda.current_device())
        self.half = -(-size // 256) * 256
        self.data = memory.empty(2 * self.half, dtype=torch.uint8, device=device)
        count = 2 * MOST.value * self.world
        self.flags = memory.empty(count, dtype=torch.int32, device=device).zero_()
        self.turns = torch.zeros(MOST.value, dtype=torch.int32, device=device)
        self.seen = memory.rendezvous(self.data, group=self.group)
        self.heard = memory.rendezvous(self.flags, group=self.group)
        # the addresses of all ranks' memory, as a table that kernels read
        places = ((self.seen, self.data), (self.heard, self.flags))
        self.tables = [torch.tensor(list(h.buffer_ptrs), device=device) for h, _ in places]
        torch.cuda.synchronize()
        dist.barrier(self.group)

    def one_shot_all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks; least latency."""
        return self._launch(reduce_part, x, torch.empty_like(x), 1)

    def two_shot_all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks; fewest bytes. `x` divides by the ranks."""
        return self._launch(two_shot, x, torch.empty_like(x), self.world)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """This rank's part of the sum, along the first axis."""
        self._check_parts(x)
        out = x.new_empty(x.shape[0] // self.world, *x.shape[1:])
        return self._launch(reduce_part, x, out, self.world)

    def all_gather(self, x: Tensor) -> Tensor:
        """The inputs of all ranks, one after the other along the first axis."""
        out = x.new_empty(x.shape[0] * self.world, *x.shape[1:])
        return self._launch(collect, x, out, 1)

    def all_to_all(self, x: Tensor) -> Tensor:
        """This rank's part of every rank's input, along the first axis."""
        self._check_parts(x)
        return self._launch(collect, x, torch.empty_like(x), self.world)

    def _check_parts(self, x: Tensor) -> None:
        if not x.dim() or x.shape[0] % self.world:
            raise UsageError(f"axis 0 of {list(x.shape)} does not divide by {self.world} ranks")

    def _launch(self, kernel: Any, x: Tensor, out: Tensor, parts: int) -> Tensor:
        if x.nbytes > self.half:
            raise UsageError(f"{x.nbytes} bytes do not fit the {self.half} of this peer memory")
        if not x.is_contiguous() or x.numel() % parts:
            raise UsageError(f"a dense input whose size divides by {parts}, not {list(x.shape)}")
        part = x.numel() // parts
        block = WARPS * 32 * LANE // x.element_size()
        programs = min(MOST.value, triton.next_power_of_2(max(1, -(-part // block))))
        kernel[(programs,)](
            x,
            out,
            *self.tables,
            self.turns,
            part,
            self.half // x.element_size(),
            PARTS=parts,
            RANK=self.rank,
            WORLD=self.world,
            PEERS=triton.next_power_of_2(self.world),
            BLOCK=block,
            PROGRAMS=programs,
            num_warps=WARPS,
        )
        return out
