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
MOST: tl.constexpr = tl.constexpr(64)  # programs, which wait for others: all must run at once
WARPS = 16
LANE = 16  # bytes that a thread moves at once


@triton.jit
def _meet(flags, pid, phase, RANK: tl.constexpr, WORLD: tl.constexpr):
    """Wait until the programs of this number on all ranks are here."""
    tl.debug_barrier()  # all threads have written
    own = tl.load(flags + RANK).to(tl.pointer_type(tl.int32))
    place = (phase * MOST + pid) * WORLD
    for step in tl.static_range(1, WORLD):  # pyright: ignore
        peer = (RANK + step) % WORLD
        told = tl.load(flags + peer).to(tl.pointer_type(tl.int32)) + place + RANK
        while tl.atomic_cas(told, 0, 1, sem="release", scope="sys") != 0:
            pass
    for step in tl.static_range(1, WORLD):  # pyright: ignore
        peer = (RANK + step) % WORLD
        while tl.atomic_cas(own + place + peer, 1, 0, sem="acquire", scope="sys") != 1:
            pass
    tl.debug_barrier()


@triton.jit
def _publish(
    x, data, flags, turns, pid, part, half, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Copy the input, cut into parts, to where all see it; gives where this call's half begins."""
    turn = tl.load(turns + pid)
    begin = tl.cast(turn % 2, tl.int64) * half
    own = tl.load(data + RANK).to(tl.pointer_type(x.dtype.element_ty)) + begin
    for piece in tl.static_range(PARTS):  # pyright: ignore
        for start in range(pid * BLOCK, part, PROGRAMS * BLOCK):
            at = start + tl.arange(0, BLOCK)
            place = piece * tl.cast(part, tl.int64) + at
            tl.store(own + place, tl.load(x + place, mask=at < part), mask=at < part)
    tl.debug_barrier()
    # for those that this call does without, too: all halves alternate together
    counters = pid + PROGRAMS * tl.arange(0, MOST // PROGRAMS)
    tl.store(turns + counters, turn + 1 + tl.zeros_like(counters))
    _meet(flags, pid, 0, RANK, WORLD)
    return begin


@triton.jit
def _sum(data, place, seen, kind, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    """The sum over all ranks at some places, in the order of ranks: the same bits everywhere."""
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(WORLD):  # pyright: ignore
        memory = tl.load(data + peer).to(kind)
        total += tl.load(memory + place, mask=seen, other=0).to(tl.float32)
    return total


@triton.jit
def reduce_part(
    x, out, data, flags, turns, part, half, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """One part, summed: with one part a one-shot all-reduce, with one a rank a reduce-scatter."""
    pid = tl.program_id(0)
    begin = _publish(x, data, flags, turns, pid, part, half, PARTS, RANK, WORLD, BLOCK, PROGRAMS)
    kind = tl.pointer_type(x.dtype.element_ty)
    offset = begin + (RANK % PARTS) * tl.cast(part, tl.int64)
    for start in range(pid * BLOCK, part, PROGRAMS * BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = _sum(data, offset + at, at < part, kind, WORLD, BLOCK)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=at < part)


@triton.jit
def collect(
    x, out, data, flags, turns, part, half, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """A part of every rank: with one part an all-gather, with one a rank an all-to-all."""
    pid = tl.program_id(0)
    begin = _publish(x, data, flags, turns, pid, part, half, PARTS, RANK, WORLD, BLOCK, PROGRAMS)
    kind = tl.pointer_type(x.dtype.element_ty)
    offset = begin + (RANK % PARTS) * tl.cast(part, tl.int64)
    for step in tl.static_range(WORLD):  # pyright: ignore
        peer = (RANK + step) % WORLD  # not all read from one
        memory = tl.load(data + peer).to(kind) + offset
        target = out + peer * tl.cast(part, tl.int64)
        for start in range(pid * BLOCK, part, PROGRAMS * BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(target + at, tl.load(memory + at, mask=at < part), mask=at < part)


@triton.jit
def two_shot(
    x, out, data, flags, turns, part, half, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """An all-reduce: this rank's part is summed into its own copy, then all parts are collected."""
    pid = tl.program_id(0)
    begin = _publish(x, data, flags, turns, pid, part, half, PARTS, RANK, WORLD, BLOCK, PROGRAMS)
    kind = tl.pointer_type(x.dtype.element_ty)
    wide = tl.cast(part, tl.int64)
    own = tl.load(data + RANK).to(kind) + begin + RANK * wide
    for start in range(pid * BLOCK, part, PROGRAMS * BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = _sum(data, begin + RANK * wide + at, at < part, kind, WORLD, BLOCK)
        tl.store(own + at, total.to(x.dtype.element_ty), mask=at < part)
    _meet(flags, pid, 1, RANK, WORLD)
    for step in tl.static_range(WORLD):  # pyright: ignore
        peer = (RANK + step) % WORLD
        memory = tl.load(data + peer).to(kind) + begin + peer * wide
        for start in range(pid * BLOCK, part, PROGRAMS * BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(out + peer * wide + at, tl.load(memory + at, mask=at < part), mask=at < part)


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
            BLOCK=block,
            PROGRAMS=programs,
            num_warps=WARPS,
        )
        return out
