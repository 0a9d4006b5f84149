"""Matmuls with data of other GPUs: all-gather + GEMM and GEMM + reduce-scatter, overlapped.

Copy engines move rows over peer memory while the ranks multiply: first the local rows, or first the
rows that others wait for. So each matmul hides the transfer for the next one (Wang et al., "Overlap
communication with dependent computation via decomposition", ASPLOS 2023), and no multiprocessor is
used for copying. A kernel that reads a peer's rows tile by tile would transfer them once per column
tile.

Ranks synchronize before anything is written to others, which may still read, and after it has
arrived.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from stack.errors import UsageError
from stack.frameworks.torch_private import symmetric_memory
from stack.ops.collectives.peer_memory import WaitLimit
from stack.ops.collectives.peer_triton import _await, _tell

Tensor = torch.Tensor


@triton.jit
def meet(
    flags, turns, failed, patience, RANK: tl.constexpr, WORLD: tl.constexpr, PEERS: tl.constexpr
):
    """A barrier of all ranks: waits until each has launched this kernel as often as this one."""
    turn = tl.load(turns) + 1
    tl.store(turns, turn)
    _tell(flags, 0, 0, turn, RANK, WORLD, PEERS)
    _await(flags, failed, patience, 0, 0, turn, RANK, WORLD, PEERS)


class PeerProducts(WaitLimit):
    """Matmuls over memory of their own that all GPUs of a host can access.

    Args:
        size: maximum number of bytes of the rows of one rank, in inputs or results.
        group: of processes, one for each GPU of a host with peer access.
        limit: approximate number of seconds that a rank waits for others.

    Raises UsageError for operands that do not fit each other or the memory, or are not dense; and
    StackError in the call after one that waited in vain.
    """

    def __init__(
        self, size: int, group: dist.ProcessGroup | None = None, limit: float = 60.0
    ) -> None:
        super().__init__(limit)
        memory = symmetric_memory()
        group = group or dist.group.WORLD
        self.rank, self.world, self.size = dist.get_rank(group), dist.get_world_size(group), size
        device = torch.device("cuda", torch.cuda.current_device())
        self.data = memory.empty(self.world * size, dtype=torch.uint8, device=device)
        self.flags = memory.empty(self.world, dtype=torch.int32, device=device).zero_()
        self.turns = torch.zeros(1, dtype=torch.int32, device=device)
        self.seen = memory.rendezvous(self.data, group=group)
        heard = memory.rendezvous(self.flags, group=group)
        self.table = torch.tensor(list(heard.buffer_ptrs), device=device)
        self.side = torch.cuda.Stream(device)
        torch.cuda.synchronize()
        dist.barrier(group)

    def gather_gemm(self, x: Tensor, w: Tensor) -> Tensor:
        """The inputs [m, k] of all ranks, concatenated, times this rank's w [k, n]."""
        self._check(x, w, x.nbytes)
        out = x.new_empty(self.world, x.shape[0], w.shape[1])
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        come: list[Any] = []  # events
        with torch.cuda.stream(self.side):
            self._meet()
            for step in range(1, self.world):
                self._slot((self.rank + step) % self.world, self.rank, x).copy_(x)
                self._meet()
                come.append(self.side.record_event())
        torch.mm(x, w, out=out[self.rank])
        for step, event in enumerate(come, start=1):
            source = (self.rank - step) % self.world
            main.wait_event(event)
            torch.mm(self._slot(self.rank, source, x), w, out=out[source])
        return out.flatten(0, 1)

    def gemm_scatter(self, x: Tensor, w: Tensor) -> Tensor:
        """This rank's rows of the sum over all ranks of x [rows, k] times w [k, n]."""
        rows = x.shape[0]
        if rows % self.world:
            raise UsageError(f"{rows} rows do not divide by {self.world} ranks")
        self._check(x, w, rows // self.world * w.shape[1] * x.element_size())
        parts = x.chunk(self.world)
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            self._meet()
        sent: list[Tensor] = []  # kept alive until all are sent
        for step in range(1, self.world):
            target = (self.rank + step) % self.world
            sent.append(parts[target] @ w)
            self.side.wait_stream(main)
            with torch.cuda.stream(self.side):
                self._slot(target, self.rank, sent[-1]).copy_(sent[-1])
        own = parts[self.rank] @ w
        with torch.cuda.stream(self.side):
            self._meet()
        main.wait_stream(self.side)
        for step in range(1, self.world):
            own += self._slot(self.rank, (self.rank - step) % self.world, own)
        return own

    def _check(self, x: Tensor, w: Tensor, size: int) -> None:
        self.check()
        if x.dtype != w.dtype or x.shape[1] != w.shape[0]:
            raise UsageError(f"x {list(x.shape)} of {x.dtype}, w {list(w.shape)} of {w.dtype}")
        if not x.is_contiguous():
            raise UsageError("x must be dense")
        if size > self.size:
            raise UsageError(f"{size} bytes do not fit the {self.size} of this peer memory")

    def _slot(self, holder: int, source: int, like: Tensor) -> Tensor:
        """Returns the part of rank `holder`'s memory that receives data from rank `source`.

        It has the shape and type of `like`.
        """
        offset = source * self.size // like.element_size()
        return self.seen.get_buffer(holder, like.shape, like.dtype, offset)

    def _meet(self) -> None:
        peers = triton.next_power_of_2(self.world)
        launch: Any = meet[(1,)]
        waits = self.table, self.turns, self.failed, self.patience
        launch(*waits, self.rank, self.world, peers, num_warps=1)
