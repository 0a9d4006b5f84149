"""One rank of a partitioned program on `torch.distributed`: gloo processes or NCCL GPUs.

Each process runs the same program on its shards. The collectives of the IR are torch's, in groups
of the mesh's axes. Before the first run, ranks compare a digest of their programs, so that
different programs raise an error instead of hanging. If a rank does not answer, the run ends on all
other ranks at the time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

from stack.errors import UsageError
from stack.frontends.torch.distributed.cuda_graph import close_all
from stack.frontends.torch.replay.elementwise_ops import Tensor
from stack.frontends.torch.replay.space import TorchSpace
from stack.ir.array_space import ArraySpace
from stack.ir.node import Node
from stack.ir.space import Run
from stack.mesh.meshes import Axes, Mesh
from stack.mesh.ops import group_of, overlap_of
from stack.mesh.overlap import Overlap, messages
from stack.mesh.sharding import part_held, part_start

OPERATORS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
}
COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
}
# types that no backend reduces, and wider ones; `sum` and `prod` still wrap around
WIDER = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its newer name
SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
LIMIT = 60.0  # seconds
Pending = Callable[[], Tensor]


class RankSpace(TorchSpace):
    """Runs the ops of a partitioned program on this rank.

    Attributes:
        mesh: must have as many ranks as the world, else UsageError.
        limit: time limit of a collective.
    """

    def __init__(self, mesh: Mesh, device: str = "cpu", limit: float = LIMIT) -> None:
        super().__init__(device)
        self.limit = timedelta(seconds=limit)
        if mesh.ranks != dist.get_world_size():
            world = dist.get_world_size()
            raise UsageError(
                f"mesh {mesh} has {mesh.ranks} ranks, the world {world}: give it axes whose sizes"
                f" multiply to {world}, or start {mesh.ranks} processes"
            )
        self.mesh, self.rank = mesh, dist.get_rank()
        self.groups: dict[Axes, tuple[tuple[int, ...], Any]] = {}
        self.places: dict[tuple[str, int, Axes], Tensor] = {}

    def prepare(self, nodes: Sequence[Node]) -> None:
        """Create the groups of collectives; all ranks create all groups in the same order."""
        for node in nodes:
            if "over" not in node.attrs:
                continue
            over = group_of(node.attrs)[1]
            if over not in self.groups:
                made = [(ranks, self._new_group(ranks)) for ranks in self.mesh.groups(over)]
                self.groups[over] = next(g for g in made if self.rank in g[0])

    def _new_group(self, ranks: Sequence[int]) -> Any:
        return dist.new_group(list(ranks), timeout=self.limit)

    def _group(self, node: Node) -> tuple[tuple[int, ...], Any]:
        return self.groups[group_of(node.attrs)[1]]

    # ---- control flow runs in Python: conditions are equal on all ranks

    def op_cond(self, node: Node, run: Run, index: Tensor, *args: Tensor) -> tuple[Tensor, ...]:
        return ArraySpace.op_cond(self, node, run, index, *args)

    def op_while(self, node: Node, run: Run, *args: Tensor) -> tuple[Tensor, ...]:
        return ArraySpace.op_while(self, node, run, *args)

    # ---- collectives: started first, waited for later

    def start(self, node: Node, x: Tensor, is_free: bool = False) -> Pending:
        """Starts a collective; calling the returned function waits for it and returns its result.

        `is_free`: true if nobody else reads `x`, so that it may be overwritten.
        """
        if node.op == "all_reduce" and not is_free:
            x = x.clone(memory_format=torch.contiguous_format)
        return getattr(self, f"_start_{node.op}")(node, x)

    def op_all_reduce(self, node: Node, x: Tensor) -> Tensor:
        return self.start(node, x)()

    op_all_gather = op_reduce_scatter = op_all_to_all = op_permute = op_halo = op_all_reduce

    def _start_all_reduce(self, node: Node, x: Tensor) -> Pending:
        kind = str(node.attrs["kind"])
        held = _reducible(x).contiguous()
        if x.dtype == torch.bool:
            kind = {"sum": "max", "or": "max", "prod": "min", "and": "min"}.get(kind, kind)
        work = dist.all_reduce(held, OPERATORS[kind], self._group(node)[1], async_op=True)
        return _after([work], lambda: held.to(x.dtype))

    def _start_all_gather(self, node: Node, x: Tensor) -> Pending:
        ranks, group = self._group(node)
        held = _bytes(x)
        made = held.new_empty(len(ranks) * held.numel())
        work = GATHER(made, held, group, async_op=True)
        return _after([work], lambda: _joined(_come(made, x, ranks), node.attrs["axis"]))

    def _start_reduce_scatter(self, node: Node, x: Tensor) -> Pending:
        kind = str(node.attrs["kind"])
        ranks, group = self._group(node)
        if dist.get_backend(group) == "nccl" and x.is_floating_point():
            sent = _parts(x, node.attrs["axis"], ranks)
            made = torch.empty_like(sent[0])
            work = SCATTER(made, sent, OPERATORS[kind], group, async_op=True)
            return _after([work], lambda: made)
        finish = self._exchanged(node, x, node.attrs["axis"])
        return lambda: reduce(COMBINE[kind], map(_reducible, finish())).to(x.dtype)

    def _start_all_to_all(self, node: Node, x: Tensor) -> Pending:
        finish = self._exchanged(node, x, node.attrs["split"])
        return lambda: _joined(finish(), node.attrs["concat"])

    def _exchanged(self, node: Node, x: Tensor, dim: int) -> Pending:
        """Starts an all-to-all of the parts of a dim; returns one part from each rank."""
        ranks, group = self._group(node)
        parts = _parts(x, dim, ranks)
        sent = _bytes(parts)
        made = torch.empty_like(sent)
        work = dist.all_to_all_single(made, sent, group=group, async_op=True)
        return _after([work], lambda: _come(made, parts[0], ranks))

    def _start_permute(self, node: Node, x: Tensor) -> Pending:
        order = node.attrs["order"]
        target, source = order[self.rank], order.index(self.rank)
        if target == self.rank:
            return lambda: x
        sent = _bytes(x)
        made = torch.empty_like(sent)
        both = [dist.P2POp(dist.isend, sent, target), dist.P2POp(dist.irecv, made, source)]
        return _after(dist.batch_isend_irecv(both), lambda: _unbytes(made, x))

    def _start_halo(self, node: Node, x: Tensor) -> Pending:
        at, size, overlap = node.attrs["axis"], node.attrs["size"], Overlap(*node.attrs["overlap"])
        ranks, own = self._group(node)[0], self.mesh.number(self.rank, group_of(node.attrs)[1])
        works: list[Any] = []
        come: list[tuple[int, Tensor, Tensor]] = []  # position, bytes, and a tensor with the shape
        for message in messages(size, len(ranks), overlap):
            if own not in (message.source, message.target):
                continue
            count = message.stop - message.start
            part = x.narrow(at, message.start - message.source * x.shape[at], count)
            place = message.start - overlap.first(message.target)
            held = _bytes(part)
            if message.source == message.target:
                come.append((place, held, part))
            elif message.source == own:
                works.append(dist.P2POp(dist.isend, held, ranks[message.target]))
            else:
                held = torch.empty_like(held)
                come.append((place, held, part))
                works.append(dist.P2POp(dist.irecv, held, ranks[message.source]))
        made = x.new_zeros([int(str(n)) for n in node.shape])

        def joined() -> Tensor:
            for place, held, part in come:
                made.narrow(at, place, part.shape[at]).copy_(_unbytes(held, part))
            return made

        return _after(dist.batch_isend_irecv(works) if works else [], joined)

    def op_shard(self, node: Node, x: Tensor) -> Tensor:
        at, over = node.attrs["axis"], group_of(node.attrs)[1]
        overlap = overlap_of(node.attrs)
        if overlap is not None:
            made = x.new_zeros([int(str(n)) for n in node.shape])
            first = overlap.first(self.mesh.number(self.rank, over))
            start, stop = max(first, 0), min(first + overlap.size, x.shape[at])
            if start < stop:
                held = x.narrow(at, start, stop - start)
                made.narrow(at, start - first, stop - start).copy_(held)
            return made
        start = part_start(x.shape[at], over, self.mesh.positions(self.rank, over))
        return x.narrow(at, start, int(node.shape[at]))

    def op_part_start(self, node: Node) -> Tensor:
        return self._place(node, part_start)

    def op_part_held(self, node: Node) -> Tensor:
        return self._place(node, part_held)

    def _place(self, node: Node, place: Callable[[int, Axes, Sequence[int]], int]) -> Tensor:
        size, over = int(node.attrs["size"]), group_of(node.attrs)[1]
        key = node.op, size, over
        if key not in self.places:  # cached: a CUDA graph cannot contain copies from the host
            found = place(size, over, self.mesh.positions(self.rank, over))
            self.places[key] = torch.tensor(found, dtype=torch.int64, device=self.device)
        return self.places[key]


def _after(works: Sequence[Any], made: Callable[[], Any]) -> Callable[[], Any]:
    def finish() -> Any:
        for work in works:
            work.wait()
        return made()

    return finish


def _parts(x: Tensor, dim: int, ranks: Sequence[int]) -> Tensor:
    """Splits a dim of `x` into one contiguous part per rank, ordered by rank number as in torch.

    `ranks`: in group order. No copy if the parts already are contiguous and in this order.
    """
    parts = x.unflatten(dim, (len(ranks), x.shape[dim] // len(ranks))).movedim(dim, 0)
    return _sorted(parts, [ranks.index(rank) for rank in sorted(ranks)]).contiguous()


def _come(held: Tensor, like: Tensor, ranks: Sequence[int]) -> Tensor:
    """Splits received bytes into tensors like `like`, one from each rank, in group order.

    Torch orders received parts by rank number.
    """
    parts = held.view(like.dtype).view(len(ranks), *like.shape)
    return _sorted(parts, [sorted(ranks).index(rank) for rank in ranks])


def _sorted(parts: Tensor, order: Sequence[int]) -> Tensor:
    if list(order) == list(range(len(order))):
        return parts
    return torch.stack([parts[i] for i in order])


def _joined(parts: Tensor, dim: int) -> Tensor:
    """Concatenates parts along a dim; no copy if they are adjacent."""
    return parts.movedim(0, dim).flatten(dim, dim + 1)


def _reducible(x: Tensor) -> Tensor:
    return x.to(WIDER.get(x.dtype, x.dtype))


def _bytes(x: Tensor) -> Tensor:
    """Returns the bytes of a tensor, a type that every backend can send."""
    dense = x.contiguous()  # strides of a single element are arbitrary
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _unbytes(held: Tensor, like: Tensor) -> Tensor:
    return held.view(like.dtype).reshape(like.shape)


def join(rank: int, ranks: int, store: str, limit: float = LIMIT) -> None:
    """Join a gloo process group that meets at a file; once per process.

    `limit`: seconds after which a rank that does not answer is an error.
    """
    if dist.is_initialized():
        return
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=limit),
    )


def leave() -> None:
    """Destroy the process groups, after the CUDA graphs that contain their collectives."""
    close_all()
    if dist.is_initialized():
        dist.destroy_process_group()
