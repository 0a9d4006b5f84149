"""Collectives in one kernel over peer memory, which all GPUs of a host can access.

They need no library, no copy engine, and one launch. Large data is pulled: half of the programs
copy the input to shared memory and raise flags, chunk by chunk. The other half waits for the flags
of the peers and reads. This is bound by the links of one GPU. The one-shot all-reduce reads all of
every rank's input. The two-shot one reduces one part per rank and then collects the parts, which
moves less data from three ranks on. Small data is pushed: words that contain their own flag are
written to the peers' memory. That is twice the bytes, but only one way over a link, with no wait in
between (the LL protocol of NCCL).

Programs with the same number on all ranks process the same elements, so they wait only for each
other, not for whole grids. Buffers alternate between two halves. Hearing from a peer in a call
implies that it has read all of the previous call, so no second round of flags is needed. Calls are
counted in memory, so that a CUDA graph can contain them.

An all-reduce may be followed, in registers, by the residual and RMSNorm of a transformer block.
"""

from __future__ import annotations

import triton
import triton.language as tl

# maximum number of programs; as they wait for others, all must run concurrently
MOST: tl.constexpr = tl.constexpr(256)
CHUNKS: tl.constexpr = tl.constexpr(64)  # more chunks than a call has
LOOK: tl.constexpr = tl.constexpr(4096)  # polls between checks of the time limit


# ---- calls and flags


@triton.jit
def _count(turns, pid, turn, COUNTERS: tl.constexpr):
    """Advance the counters in `turns` at the end of a call that began at `turn`.

    Each program writes a share of them, including those of programs that this call did not have.
    """
    tl.debug_barrier()  # all threads have read it
    counters = tl.arange(0, COUNTERS)
    mine = counters % tl.num_programs(0) == pid
    tl.store(turns + counters, turn + CHUNKS + tl.zeros_like(counters), mask=mine)


@triton.jit
def _half(turn):
    """Returns which half of the double-buffered memory a call uses: 0 or 1."""
    return (turn // CHUNKS) & 1


@triton.jit
def _tell(flags, pid, phase, turn, RANK: tl.constexpr, WORLD: tl.constexpr, PEERS: tl.constexpr):
    """Signal to program `pid` of all ranks that program `pid` of this rank has reached `turn`.

    A flag contains the last `turn` that its rank has reached, so it is never reset. All peers are
    signalled concurrently, by one thread each.
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
    """True if waiting should stop, because of the time limit here or in another program.

    `failed` is host memory, which is slow to read, so it is not checked at each poll.
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
    """Wait until program `pid` of every rank has reached `turn`, or the time limit is over."""
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
    """Returns the pointer to a rank's memory; it is aligned to 16 bytes."""
    return tl.multiple_of(tl.load(data + rank).to(kind), 16)


# ---- a unit: contiguous elements that a program has in registers


@triton.jit
def _unit(number, part, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the offsets of unit `number` in a part of `part` elements, and their mask."""
    lanes = tl.arange(0, BLOCK)
    at = number * WIDTH + lanes
    return at, (at < part) & (lanes < WIDTH)


@triton.jit
def _publish(
    x, data, flags, turn, pid, part, half, units, span, PARTS: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, PEERS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the input to this rank's memory, and signal to all ranks after each chunk."""
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
    """Returns the sum over all ranks of their inputs at the offsets `place`, in f32. It is added in
    the order of the ranks, so that all of them get the same bits."""
    kind = tl.pointer_type(x.dtype.element_ty)
    total = tl.zeros(place.shape, tl.float32)
    for peer in tl.static_range(WORLD):  # pyright: ignore
        source = x if peer == RANK else _memory(data, peer, kind) + begin
        total += tl.load(source + place, mask=seen, other=0).to(tl.float32)
    return total


@triton.jit
def _beside(residual, weight, at, seen, WIDTH: tl.constexpr):
    """Load residual and weight for a unit of a norm early, before the sum is available.

    Without a norm the results are placeholders.
    """
    if weight is None:
        return seen, seen  # unused
    else:
        lanes = tl.arange(0, at.shape[0])
        before = tl.load(residual + at, mask=seen, other=0)
        return before, tl.load(weight + lanes, mask=lanes < WIDTH, other=0)


@triton.jit
def _finish(total, out, at, seen, before, gain, added, eps, WIDTH: tl.constexpr):
    """Write a unit of sums to `out`.

    With a norm (`added` is given), adds the residual, writes these sums to `added`, and their
    RMSNorm times the weight to `out`.
    """
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
    """A collective of small data: each 64-bit word has 32 bits of data and the call's number.

    Readers wait for that number, so no flags are needed. `REDUCES`: parts are summed; else
    concatenated. `part`, `WIDTH` and `BLOCK` count elements, of which a word has `FIT`; `room` is
    the number of words from one rank to another.
    """
    pid = tl.program_id(0)
    turn = tl.load(turns + pid)
    now = turn + CHUNKS  # no earlier word has this number
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
    """Wait until the words of a peer have the number of this call, and return their data.

    Returns early if the time limit is over.
    """
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
    """Unpacks 32-bit words to f32: one 32-bit element per word, or two 16-bit ones, the low half
    first."""
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
    """A collective of large data: half of the programs publish the input, the others read.

    `REDUCES`: this rank's part is summed. With one part that is a one-shot all-reduce, with one per
    rank a reduce-scatter. `COLLECTS`: one part of every rank is read. With one part that is an
    all-gather, with one per rank an all-to-all. With both it is a two-shot all-reduce: the sum of a
    part is published, and all sums are collected.
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
                        peer = (RANK + step) % WORLD  # so that not all read from the same rank
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
    """The second shot of an all-reduce: reads the sums of all other ranks.

    Residuals and norms are computed afterwards on all ranks, so that only the sums are transferred.
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
