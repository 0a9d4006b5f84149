"""Collectives in one kernel over peer memory: memory that all GPUs of a host see.

No library, no copy engine, one launch. Much is published and read: half of the programs copy the
input to where others see it and raise flags, chunk by chunk, while the other half waits for the
flags of the peers and reads: what limits it are the links of one GPU. The one-shot all-reduce
reads all of every rank's input; the two-shot one reduces a part on each rank and then collects the
parts, which is less from three ranks on. Little is pushed: words that hold their own flag go into
the peers' memory, twice the bytes in one way over a link, with nothing to wait for in between (the
LL protocol of NCCL).

Programs with one number on all ranks deal with the same elements, so they wait for each other
alone, not for whole grids. What is sent alternates between two halves: who has heard from a peer in
a call knows that it has read all of the call before, so no second round of flags is needed. Calls
are counted in memory, so that a CUDA graph can hold one.

An all-reduce may go on in registers to the residual and RMSNorm of a transformer's block.
"""

from __future__ import annotations

import triton
import triton.language as tl

MOST: tl.constexpr = tl.constexpr(256)  # programs, which wait for others: all must run at once
CHUNKS: tl.constexpr = tl.constexpr(64)  # more than a call has
LOOK: tl.constexpr = tl.constexpr(4096)  # polls between looks at whether to wait on


# ---- calls and flags


@triton.jit
def _count(turns, pid, turn, COUNTERS: tl.constexpr):
    """The end of a call that began at a turn: also for programs that it did without."""
    tl.debug_barrier()  # all threads have read it
    counters = tl.arange(0, COUNTERS)
    mine = counters % tl.num_programs(0) == pid
    tl.store(turns + counters, turn + CHUNKS + tl.zeros_like(counters), mask=mine)


@triton.jit
def _half(turn):
    """Which half of the memory a call has."""
    return (turn // CHUNKS) & 1


@triton.jit
def _tell(flags, pid, phase, turn, RANK: tl.constexpr, WORLD: tl.constexpr, PEERS: tl.constexpr):
    """Say to the programs of this number on all ranks that this one has come to a turn.

    A flag holds the last turn that its rank has come to, so none is ever taken back. Peers are
    told all at once, a thread for each.
    """
    tl.debug_barrier()  # all threads have written
    peers = tl.arange(0, PEERS)
    there = peers < WORLD
    place = (phase * MOST + pid) * WORLD + RANK
    tables = tl.load(flags + peers, mask=there, other=0).to(tl.pointer_type(tl.int32))
    now = turn + tl.zeros_like(peers)
    tl.atomic_xchg(tables + place, now, mask=there, sem="release", scope="sys")


@triton.jit
def _gives_up(polls, failed, patience):
    """Whether to wait no longer, as nobody came in so many polls, here or in another program.

    The host sees `failed`, which is far from here, so it is not looked at each time.
    """
    over = 0
    if polls % LOOK == 0:
        if polls >= patience:
            tl.store(failed, 1)
        over = tl.load(failed, volatile=True)
    return over


@triton.jit
def _await(
    flags, failed, patience, pid, phase, turn, RANK: tl.constexpr, WORLD: tl.constexpr,
    PEERS: tl.constexpr,
):  # fmt: skip
    """Wait until the programs of this number on all ranks have come to a turn."""
    peers = tl.arange(0, PEERS)
    there = peers < WORLD
    own = tl.load(flags + RANK).to(tl.pointer_type(tl.int32)) + (phase * MOST + pid) * WORLD
    late = 1
    polls = tl.full((), 0, tl.int32)
    while late > 0:
        seen = tl.atomic_add(own + peers, 0, mask=there, sem="acquire", scope="sys")
        late = tl.max(tl.where(there & (seen - turn < 0), 1, 0), 0)
        polls += 1
        if _gives_up(polls, failed, patience) != 0:
            late = 0
    tl.debug_barrier()


@triton.jit
def _memory(data, rank, kind):
    """Where a rank's data begins, which is aligned."""
    return tl.multiple_of(tl.load(data + rank).to(kind), 16)


# ---- a unit: neighbouring elements that a program has in registers


@triton.jit
def _unit(number, part, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Where the elements of a unit lie in a part, and which of them are there."""
    lanes = tl.arange(0, BLOCK)
    at = number * WIDTH + lanes
    return at, (at < part) & (lanes < WIDTH)


@triton.jit
def _publish(
    x, data, flags, turn, pid, part, half, units, span, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, PEERS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy what others read of the input to where they see it, and tell them, chunk by chunk."""
    wide = tl.cast(part, tl.int64)
    own = _memory(data, RANK, tl.pointer_type(x.dtype.element_ty)) + _half(turn) * half
    for first in range(0, units, span):
        turn += 1
        for number in range(first + pid, min(first + span, units), tl.num_programs(0)):
            at, seen = _unit(number, part, WIDTH, BLOCK)
            for piece in tl.static_range(PARTS):  # pyright: ignore
                if PARTS == 1 or piece != RANK:
                    place = piece * wide + at
                    tl.store(own + place, tl.load(x + place, mask=seen), mask=seen)
        _tell(flags, pid, 0, turn, RANK, WORLD, PEERS)


@triton.jit
def _sum(x, data, place, seen, begin, RANK: tl.constexpr, WORLD: tl.constexpr):
    """The sum over all ranks at some places, in the order of ranks: the same bits everywhere."""
    kind = tl.pointer_type(x.dtype.element_ty)
    total = tl.zeros(place.shape, tl.float32)
    for peer in tl.static_range(WORLD):  # pyright: ignore
        source = x if peer == RANK else _memory(data, peer, kind) + begin
        total += tl.load(source + place, mask=seen, other=0).to(tl.float32)
    return total


@triton.jit
def _beside(residual, weight, at, seen, WIDTH: tl.constexpr):
    """What a norm needs besides a sum, asked for before that is there."""
    if weight is None:
        return seen, seen  # nobody asks
    else:
        lanes = tl.arange(0, at.shape[0])
        before = tl.load(residual + at, mask=seen, other=0)
        return before, tl.load(weight + lanes, mask=lanes < WIDTH, other=0)


@triton.jit
def _finish(total, out, at, seen, before, gain, added, eps, WIDTH: tl.constexpr):
    """Write a unit; with `added`, the RMSNorm of it and the residual, and what they add up to."""
    if added is not None:
        kind = out.dtype.element_ty
        total = (total.to(kind).to(tl.float32) + before.to(tl.float32)).to(kind)
        tl.store(added + at, total, mask=seen)
        total = total.to(tl.float32)
        total *= gain.to(tl.float32) / tl.sqrt(tl.sum(total * total, 0) / WIDTH + eps)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=seen)


# ---- kernels


@triton.jit(do_not_specialize=("units",))
def push(
    x, out, residual, weight, added, eps, words, turns, failed, patience, part, units, room,
    PARTS: tl.constexpr, REDUCES: tl.constexpr, RANK: tl.constexpr, WORLD: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A collective of little: every 32 bits of data go with the number of the call.

    `REDUCES`: whether parts are summed, or stand side by side. `part`, `WIDTH` and `BLOCK` count
    elements, of which a word has `FIT`, and `room` the words of a rank for another.
    """
    pid = tl.program_id(0)
    turn = tl.load(turns + pid)
    now = turn + CHUNKS  # no word that is there has it
    kind: tl.constexpr = x.dtype.element_ty
    FIT: tl.constexpr = 32 // kind.primitive_bitwidth  # pyright: ignore
    x = x.to(tl.pointer_type(tl.int32), bitcast=True)
    wide = tl.cast(part // FIT, tl.int64)
    slots = _half(turn) * WORLD * tl.cast(room, tl.int64)
    for number in range(pid, units, tl.num_programs(0)):
        at, seen = _unit(number, part // FIT, WIDTH // FIT, BLOCK // FIT)
        for step in tl.static_range(1, WORLD):  # pyright: ignore
            peer = (RANK + step) % WORLD
            data = tl.load(x + (peer % PARTS) * wide + at, mask=seen, other=0).to(tl.int64)
            word = (tl.cast(now, tl.int64) << 32) | (data & 0xFFFFFFFF)
            memory = _memory(words, peer, tl.pointer_type(tl.int64)) + slots
            tl.store(memory + RANK * room + at, word, mask=seen)
        place, there = _unit(number, part, WIDTH, BLOCK)
        before, gain = _beside(residual, weight, place, there, WIDTH)
        memory = _memory(words, RANK, tl.pointer_type(tl.int64)) + slots
        total = tl.zeros((BLOCK,), tl.float32)
        for peer in tl.static_range(WORLD):  # pyright: ignore
            if peer == RANK:
                data = tl.load(x + (RANK % PARTS) * wide + at, mask=seen, other=0)
            else:
                data = _come(memory + peer * room + at, seen, now, failed, patience)
            if REDUCES:
                total += _elements(data, kind)
            else:
                beside = out.to(tl.pointer_type(tl.int32), bitcast=True) + peer * wide
                tl.store(beside + at, data, mask=seen)
        if REDUCES:
            _finish(total, out, place, there, before, gain, added, eps, WIDTH)
    _count(turns, pid, turn, 2 * MOST)


@triton.jit
def _come(place, seen, turn, failed, patience):
    """The data of words that a peer sends in this call, when they are here."""
    word = tl.load(place, mask=seen, other=0, volatile=True)
    late = tl.max(tl.where(seen & ((word >> 32).to(tl.int32) - turn < 0), 1, 0), 0)
    polls = tl.full((), 0, tl.int32)
    while late > 0:
        word = tl.load(place, mask=seen, other=0, volatile=True)
        late = tl.max(tl.where(seen & ((word >> 32).to(tl.int32) - turn < 0), 1, 0), 0)
        polls += 1
        if _gives_up(polls, failed, patience) != 0:
            late = 0
    return word.to(tl.int32)


@triton.jit
def _elements(bits, kind: tl.constexpr):
    """The elements that words of 32 bits hold, one after the other."""
    if kind.primitive_bitwidth == 32:  # pyright: ignore
        return bits.to(kind, bitcast=True).to(tl.float32)
    else:
        low = bits.to(tl.int16).to(kind, bitcast=True).to(tl.float32)
        high = (bits >> 16).to(tl.int16).to(kind, bitcast=True).to(tl.float32)
        return tl.interleave(low, high)


@triton.jit(do_not_specialize=("units", "span"))
def pull(
    x, out, residual, weight, added, eps, data, flags, turns, failed, patience, part, half,
    units, span, PARTS: tl.constexpr, REDUCES: tl.constexpr, COLLECTS: tl.constexpr,
    RANK: tl.constexpr, WORLD: tl.constexpr, PEERS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A collective of much: half of the programs publish the input, the others read.

    `REDUCES`: this rank's part is summed: with one part a one-shot all-reduce, with one a rank a
    reduce-scatter. `COLLECTS`: a part of every rank is read: with one part an all-gather, with one
    a rank an all-to-all. Both: an all-reduce of two shots, where the sum of a part goes to where
    others see it, and all sums are collected.
    """
    pid, role = tl.program_id(0), tl.program_id(1)
    turn = tl.load(turns + role * MOST + pid)
    if role == 0:
        _publish(
            x, data, flags, turn, pid, part, half, units, span,
            PARTS, RANK, WORLD, PEERS, WIDTH, BLOCK,
        )  # fmt: skip
    else:
        begin = _half(turn) * half
        wide = tl.cast(part, tl.int64)
        own = (RANK % PARTS) * wide
        kind = tl.pointer_type(x.dtype.element_ty)
        if REDUCES and COLLECTS:
            memory = _memory(data, RANK, kind) + begin
        now = turn
        for first in range(0, units, span):
            now += 1
            _await(flags, failed, patience, pid, 0, now, RANK, WORLD, PEERS)
            for number in range(first + pid, min(first + span, units), tl.num_programs(0)):
                at, seen = _unit(number, part, WIDTH, BLOCK)
                if not REDUCES:
                    for step in tl.static_range(WORLD):  # pyright: ignore
                        peer = (RANK + step) % WORLD  # not all read from one
                        source = x if peer == RANK else _memory(data, peer, kind) + begin
                        value = tl.load(source + own + at, mask=seen)
                        tl.store(out + peer * wide + at, value, mask=seen)
                else:
                    place = own + at
                    to = place if COLLECTS else at
                    before, gain = _beside(residual, weight, to, seen, WIDTH)
                    total = _sum(x, data, place, seen, begin, RANK, WORLD)
                    if COLLECTS:
                        total = total.to(x.dtype.element_ty)
                        tl.store(memory + place, total, mask=seen)
                    _finish(total, out, to, seen, before, gain, added, eps, WIDTH)
            if REDUCES and COLLECTS:
                _tell(flags, pid, 1, now, RANK, WORLD, PEERS)
        if REDUCES and COLLECTS:
            norm = (residual, weight, added, eps)
            waits = (flags, failed, patience)
            _collect_sums(
                out, norm, data, waits, turn, pid, part, begin, units, span, kind,
                RANK, WORLD, PEERS, WIDTH, BLOCK,
            )  # fmt: skip
    _count(turns + role * MOST, pid, turn, MOST)


@triton.jit
def _collect_sums(
    out, norm, data, waits, turn, pid, part, begin, units, span, kind: tl.constexpr,
    RANK: tl.constexpr, WORLD: tl.constexpr, PEERS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The second shot of an all-reduce: the sums of all other ranks.

    Residuals and norms come last, on all ranks, so that no more than the sums has to travel.
    """
    residual, weight, added, eps = norm
    flags, failed, patience = waits
    wide = tl.cast(part, tl.int64)
    for first in range(0, units, span):
        turn += 1
        _await(flags, failed, patience, pid, 1, turn, RANK, WORLD, PEERS)
        for step in tl.static_range(1, WORLD):  # pyright: ignore
            peer = (RANK + step) % WORLD
            source = _memory(data, peer, kind) + begin
            for number in range(first + pid, min(first + span, units), tl.num_programs(0)):
                at, seen = _unit(number, part, WIDTH, BLOCK)
                place = peer * wide + at
                before, gain = _beside(residual, weight, place, seen, WIDTH)
                total = tl.load(source + place, mask=seen, other=0)
                _finish(total, out, place, seen, before, gain, added, eps, WIDTH)
