"""Memory that all GPUs of one host can access, and the collectives over it.

The kernel for a collective is selected by predicted cost: that of the messages of a schedule. The
link has one latency for calls that push words, and another for calls that wait for flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from stack.errors import StackError, UsageError, unknown_name
from stack.frameworks.torch_private import symmetric_memory
from stack.ops.collectives.algorithms import build
from stack.ops.collectives.network import Link, Network
from stack.ops.collectives.peer_triton import CHUNKS, MOST, pull, push

Tensor = torch.Tensor
PROGRAMS, WARPS = 128, 16  # maximum
PUSH_LANE, LANE = 8, 32  # bytes of input in flight per thread
LANES = 128  # bytes per thread, over all ranks, in registers
DEPTH = 8  # minimum number of units per chunk
PUSHED = 1 << 19  # maximum number of bytes pushed to each rank
POLL = 1e-6  # approximate seconds per poll
NO_NORM = (None, None, None, None)
# two H200s of one host: fitted by stack.demos.collectives, 2026-11
LINKS: Mapping[str, Link] = {"push": Link(4.1e-6, 1 / 176e9), "pull": Link(6.3e-6, 1 / 296e9)}
# the ways to do each collective: the link, and the schedule with the same messages
WAYS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "all_reduce": {
        "push": ("push", "one_shot"),
        "one_shot": ("pull", "one_shot"),
        "two_shot": ("pull", "two_shot"),
    },
    **{
        name: {"push": ("push", "direct"), "direct": ("pull", "direct")}
        for name in ("reduce_scatter", "all_gather", "all_to_all")
    },
}


def predicted(
    collective: str, ranks: int, size: int, links: Mapping[str, Link] = LINKS
) -> dict[str, float]:
    """Returns the predicted seconds of each way of `WAYS` to do a collective of `size` input bytes
    per rank, fastest first. Way "push" is left out if a rank would push too many bytes."""
    found = {
        way: Network(links[link]).seconds(build(collective, schedule, ranks), size)
        for way, (link, schedule) in WAYS[collective].items()
        if way != "push" or _pushed(collective, ranks, size) <= PUSHED
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _pushed(collective: str, ranks: int, size: int) -> int:
    """Returns the bytes that a rank sends to each other rank by pushing, for `size` input bytes."""
    return size // ranks if collective in ("reduce_scatter", "all_to_all") else size


@cache
def _ordered(collective: str, ranks: int, size: int) -> tuple[str, ...]:
    return tuple(predicted(collective, ranks, size))


class WaitLimit:
    """The time limit of kernels that wait for other ranks, and the failure flag for the host."""

    rank: int

    def __init__(self, limit: float) -> None:
        self.failed = torch.zeros(1, dtype=torch.int32, pin_memory=True)  # visible to the host
        self.patience = int(min(limit / POLL, 1 << 30))

    def check(self) -> None:
        """Raise StackError if a call that has run waited for another rank in vain."""
        if int(self.failed):
            raise StackError(f"rank {self.rank} waited for the others in vain")

    def wait(self) -> None:
        """Wait for all calls. Raises StackError as `check` does, which every call runs first."""
        torch.cuda.synchronize()
        self.check()


class PeerMemory(WaitLimit):
    """Memory that all GPUs of one host can access, and the collectives over it.

    All collectives take `way`, one of `WAYS`; by default the one predicted to be fastest.

    Args:
        size: maximum number of bytes of an input.
        group: of processes, one for each GPU of a host with peer access.
        limit: approximate number of seconds that a rank waits for others.

    Raises UsageError for inputs that are too large, not dense, or do not divide; and StackError in
    the call after one that waited in vain.
    """

    def __init__(
        self, size: int, group: dist.ProcessGroup | None = None, limit: float = 60.0
    ) -> None:
        super().__init__(limit)
        memory = symmetric_memory()
        self.group = group or dist.group.WORLD
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        device = torch.device("cuda", torch.cuda.current_device())
        self.half = -(-size // 256) * 256
        words, flags = 2 * self.world * PUSHED // 4, 2 * self.world * MOST.value
        self.held = [
            memory.empty(2 * self.half, dtype=torch.uint8, device=device),
            memory.empty(words, dtype=torch.int64, device=device).zero_(),
            memory.empty(flags, dtype=torch.int32, device=device).zero_(),
        ]
        self.seen = [memory.rendezvous(held, group=self.group) for held in self.held]
        # the addresses of all ranks' memory, as tables that kernels read
        self.tables = [torch.tensor(list(s.buffer_ptrs), device=device) for s in self.seen]
        self.turns = torch.zeros(2 * MOST.value, dtype=torch.int32, device=device)
        torch.cuda.synchronize()
        dist.barrier(self.group)

    def all_reduce(self, x: Tensor, way: str = "") -> Tensor:
        """The sum over all ranks. For two shots, the ranks must divide `x`."""
        return self._reduced(x, torch.empty_like(x), way)

    def all_reduce_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, *, eps: float = 1e-6, way: str = ""
    ) -> tuple[Tensor, Tensor]:
        """`norm.add_rms_norm` of the sum over all ranks of `x [..., d]`, in the same kernel.

        `residual [..., d]` and `weight [d]` have the element type of `x` and are the same on all
        ranks; so are the two results.
        """
        if residual.shape != x.shape or weight.shape != x.shape[-1:]:
            shown = [list(t.shape) for t in (x, residual, weight)]
            raise UsageError(f"x {shown[0]}, residual {shown[1]}, weight {shown[2]}")
        if len({t.dtype for t in (x, residual, weight)}) > 1:
            raise UsageError(f"x of {x.dtype}, residual {residual.dtype}, weight {weight.dtype}")
        if not residual.is_contiguous() or not weight.is_contiguous():
            raise UsageError("residual and weight must be dense")
        added = torch.empty_like(x)
        norm = (residual, weight, added, eps)
        return self._reduced(x, torch.empty_like(x), way, norm), added

    def reduce_scatter(self, x: Tensor, way: str = "") -> Tensor:
        """This rank's part of the sum, along the first axis."""
        self._check_parts(x)
        out = x.new_empty(x.shape[0] // self.world, *x.shape[1:])
        if self._way("reduce_scatter", x, way) == "push":
            return self._push(x, out, self.world, True)
        return self._pull(x, out, self.world, reduces=True)

    def all_gather(self, x: Tensor, way: str = "") -> Tensor:
        """The inputs of all ranks, concatenated along the first axis."""
        out = x.new_empty(x.shape[0] * self.world, *x.shape[1:])
        if self._way("all_gather", x, way) == "push":
            return self._push(x, out, 1, False)
        return self._pull(x, out, 1, collects=True)

    def all_to_all(self, x: Tensor, way: str = "") -> Tensor:
        """This rank's part of every rank's input, along the first axis."""
        self._check_parts(x)
        if self._way("all_to_all", x, way) == "push":
            return self._push(x, torch.empty_like(x), self.world, False)
        return self._pull(x, torch.empty_like(x), self.world, collects=True)

    def _reduced(self, x: Tensor, out: Tensor, way: str, norm: Any = None) -> Tensor:
        way = self._way("all_reduce", x, way, x.shape[-1] if norm else 1)
        if way == "push":
            return self._push(x, out, 1, True, norm)
        twice = way == "two_shot"
        return self._pull(x, out, self.world if twice else 1, norm, reduces=True, collects=twice)

    # ---- checks

    def _check_parts(self, x: Tensor) -> None:
        if not x.dim() or x.shape[0] % self.world:
            raise UsageError(f"axis 0 of {list(x.shape)} does not divide by {self.world} ranks")

    def _way(self, collective: str, x: Tensor, way: str, row: int = 1) -> str:
        """Returns `way`, or by default the way predicted to be fastest, if it supports the input.

        Raises UsageError for an input that is too large or not dense, for sums of other types than
        floats, and if no allowed way supports it. `row`: number of elements that must not be split.
        """
        self.check()
        if x.nbytes > self.half:
            raise UsageError(f"{x.nbytes} bytes do not fit the {self.half} of this peer memory")
        if not x.is_contiguous():
            raise UsageError(f"the input must be dense, but has strides {x.stride()}")
        if collective in ("all_reduce", "reduce_scatter") and not x.is_floating_point():
            raise UsageError(f"sums need floats, not {x.dtype}")
        if way and way not in WAYS[collective]:
            raise unknown_name(f"{collective} has no way", way, WAYS[collective])
        why = ""
        for found in [way] if way else _ordered(collective, self.world, x.nbytes):
            why = self._why_not(collective, found, x, row)
            if not why:
                return found
        raise UsageError(f"{collective} of {list(x.shape)} {x.dtype}: {why}")

    def _why_not(self, collective: str, way: str, x: Tensor, row: int) -> str:
        """Returns the reason why a way does not support an input; "" if it does."""
        if way == "two_shot" and x.numel() // row % self.world:
            return f"for two shots, {self.world} ranks must divide the input"
        if way != "push":
            return ""
        size = _pushed(collective, self.world, x.nbytes)
        if size > PUSHED:
            return f"{size} bytes per rank are more than can be pushed ({PUSHED})"
        together = row * x.element_size() if row > 1 else size
        if x.element_size() not in (2, 4) or together % 4:
            return "only whole 32-bit words are pushed"
        return ""

    # ---- launches

    def _push(self, x: Tensor, out: Tensor, parts: int, reduces: bool, norm: Any = None) -> Tensor:
        x = x.clone() if x.data_ptr() % 4 else x  # aligned, as all ranks must choose the same way
        part = x.numel() // parts
        width, options = _unit(x, part, PUSH_LANE, norm)
        units = -(-part // width)
        if units:
            launch: Any = push[(min(PROGRAMS, units),)]
            launch(
                x,
                out,
                *(norm or NO_NORM),
                self.tables[1],
                self.turns,
                self.failed,
                self.patience,
                part,
                units,
                PUSHED // 4,
                PARTS=parts,
                REDUCES=reduces,
                RANK=self.rank,
                WORLD=self.world,
                **options,
            )
        return out

    def _pull(
        self, x: Tensor, out: Tensor, parts: int, norm: Any = None, *,
        reduces: bool = False, collects: bool = False,
    ) -> Tensor:  # fmt: skip
        part = x.numel() // parts
        width, options = _unit(x, part, min(LANE, LANES // self.world), norm)
        units = -(-part // width)
        if units:
            programs = min(PROGRAMS, units)
            depth = max(DEPTH, -(-units // programs // (CHUNKS.value - 2)))
            launch: Any = pull[(programs, 2)]
            launch(
                x,
                out,
                *(norm or NO_NORM),
                self.tables[0],
                self.tables[2],
                self.turns,
                self.failed,
                self.patience,
                part,
                self.half // x.element_size(),
                units,
                depth * programs,
                PARTS=parts,
                REDUCES=reduces,
                COLLECTS=collects,
                RANK=self.rank,
                WORLD=self.world,
                PEERS=_power(self.world),
                **options,
            )
        return out


def _unit(x: Tensor, part: int, lane: int, norm: Any) -> tuple[int, dict[str, int]]:
    """Returns the number of elements per unit of work, and the launch options for it.

    A unit is a row if there is a norm; else it is small enough that all programs have work. `lane`:
    bytes per thread.
    """
    size, warp = x.element_size(), 32 * lane
    together = x.shape[-1] * size if norm else -(-part * size // PROGRAMS)
    warps = min(max(_power(-(-together // warp)), 1 if norm else 4), WARPS)
    width = x.shape[-1] if norm else warps * warp // size
    return width, {"WIDTH": width, "BLOCK": _power(width), "num_warps": warps}


def _power(count: int) -> int:
    """Returns the least power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()
