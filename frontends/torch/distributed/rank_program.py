"""Runs a rank's program on torch: asynchronous collectives; segments compiled or op by op."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from stack.errors import StackError, UsageError
from stack.frontends.torch.distributed.cuda_graph import Recorded
from stack.frontends.torch.distributed.mesh import LIMIT, RankSpace
from stack.frontends.torch.distributed.rank_compute import (
    Compute,
    compute_of,
    options_beside,
    stream_balance,
)
from stack.frontends.torch.replay.elementwise_ops import Tensor
from stack.ir.func import Func
from stack.ir.node import Node
from stack.mesh.meshes import Mesh
from stack.mesh.ops import is_place
from stack.sim.flights import Flights
from stack.sim.segments import (
    Meeting,
    Segment,
    SegmentStep,
    beside_collectives,
    steps_of,
)


@dataclass
class RankProgram:
    """The program of this rank, from its shards of the parameters to its shards of the results.

    Attributes:
        backend: compiles segments; "" runs them op by op.
        carried: maps results to the parameters that they become in the next call. With a CUDA
            graph these parameters are overwritten, otherwise they are not.
        graph: if true, the second call is recorded as a CUDA graph and later ones replay it; each
            call overwrites the results of the one before.
        options: of the backend, such as `hosted`.
        overlaps: if true, collectives run in the background; else each is waited for at once.
        compiled: how many of the distinct segments the backend compiled.
        peak: most bytes of held values in the newest run, if `watches`: counting takes the host
            longer than launching a small segment.
    """

    mesh: Mesh
    local: Func
    space: RankSpace
    bucket: int = 0
    backend: str = ""
    carried: Mapping[int, int] = field(default_factory=dict[int, int])
    graph: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overlaps: bool = True
    watches: bool = False
    peak: int = 0
    compiled: str = ""
    steps: list[SegmentStep] = field(init=False)
    computes: dict[Segment, Compute] = field(init=False)
    free: list[set[Node]] = field(init=False)  # values that only a step reads, in own memory
    recorded: Recorded | None = field(init=False)

    def __post_init__(self) -> None:
        balance = stream_balance(self.space, self.backend)
        self.steps = steps_of(self.local, self.bucket, balance=balance)
        self.recorded = Recorded(self.carried) if self.graph else None
        segments = [s.work for s in self.steps if isinstance(s.work, Segment)]
        beside = beside_collectives(self.steps) if self.overlaps else frozenset[Segment]()
        made: dict[tuple[Func, bool], Compute] = {}
        for segment in segments:  # equal layers share one function
            key = segment.func, segment in beside
            if key not in made:
                made[key] = self._compute(*key)
        self.computes = {s: made[s.func, s in beside] for s in segments}
        own = {n for s in segments if self._is_compiled(s.func) for n in s.outputs}
        self.free = [own & set(step.last) & _read_once(step) for step in self.steps]
        count = sum(self._is_compiled(func) for func, _ in made)
        self.compiled = f"{count} of {len(made)}"

    def __call__(self, *parts: Tensor) -> list[Tensor]:
        """Run the program. Raises StackError if a rank does not answer within the limit."""
        if self.recorded is not None and not self.watches:
            return self.recorded(self.run, parts)
        return self.run(parts)

    def run(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Run the program step by step, without a CUDA graph."""
        held: dict[Node, Any] = dict(zip(self.local.params, parts, strict=True))
        flights = Flights()
        self.peak = 0
        for step, free in zip(self.steps, self.free, strict=True):
            self._do(step.work, held, flights, free)
            if self.watches:
                self.peak = max(self.peak, _bytes(held))
            for node in step.last:
                del held[node]
        return [self._read(held, flights, r) for r in self.local.results]

    def _do(
        self, work: Segment | Meeting, held: dict[Node, Any], flights: Flights, free: set[Node]
    ) -> None:
        """Computes a segment, or starts collectives, which may overwrite their operands in `free`.

        Afterwards only `held` and collectives in flight refer to values.
        """
        args = [self._read(held, flights, n) for n in work.inputs]
        if isinstance(work, Segment):
            held.update(zip(work.outputs, self.computes[work](args), strict=True))
            return
        by_node = dict(zip(work.inputs, args, strict=True))
        for node in work.nodes:
            (x,) = node.args
            held[node] = self.space.start(node, by_node[x], x in free)
            flights.start(node)
            if not self.overlaps:
                self._read(held, flights, node)

    def _read(self, held: dict[Node, Any], flights: Flights, node: Node) -> Tensor:
        """Returns a value. Waits for its collective, and for those that are complete then."""
        if node not in held:  # a constant
            return self.space.constant(node.attrs["value"])
        for other in flights.land(node):
            if callable(held.get(other)):
                held[other] = self._landed(held[other], other)
        return held[node]

    def _landed(self, wait: Callable[[], Tensor], node: Node) -> Tensor:
        """Waits for a collective; returns its result."""
        try:
            return wait()
        except RuntimeError as error:  # raised by the transport
            raise StackError(
                f"rank {self.space.rank} got no answer in {node.op} of {node.type}: {error}"
            ) from error

    def _is_compiled(self, func: Func) -> bool:
        """True if the backend compiles a segment; not if the segment reads the rank's position."""
        return bool(self.backend) and not any(map(is_place, func.nodes))

    def _compute(self, func: Func, shared: bool) -> Compute:
        if not self._is_compiled(func):
            return compute_of(func, self.space)
        given = options_beside(self.space) if shared else {}
        return compute_of(func, self.space, self.backend, {**self.options, **given})


def _read_once(step: SegmentStep) -> set[Node]:
    """Returns the operands that only one of the collectives of a step reads; it may overwrite them.

    Empty for a step that computes.
    """
    nodes = step.work.nodes if isinstance(step.work, Meeting) else ()
    read = Counter(a for n in nodes for a in n.args)
    return {n for n, count in read.items() if count == 1}


def _bytes(held: dict[Node, Any]) -> int:
    """Returns the bytes of memory of values, shared memory counted once, with pending results."""
    stores = [v.untyped_storage() for v in held.values() if isinstance(v, torch.Tensor)]
    coming = sum(int(str(n.tensor.bytes)) for n, v in held.items() if callable(v))
    return coming + sum({store.data_ptr(): store.nbytes() for store in stores}.values())


def rank_program(
    mesh: Mesh,
    local: Func,
    device: str = "cpu",
    bucket: int = 0,
    backend: str = "",
    limit: float = LIMIT,
    carried: Mapping[int, int] | None = None,
    graph: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> RankProgram:
    """Builds the program of this rank, from its shards of parameters to its shards of results.

    Args:
        bucket: bytes of collectives that start together, see `steps_of`.
        backend: compiles the segments between collectives.
        limit: seconds after which waiting for another rank is an error.
        carried, graph, options: as in `RankProgram`; by default a graph is used with NCCL.

    Raises:
        UsageError: on all ranks, if one has another program or mesh.
    """
    space = RankSpace(mesh, device, limit)
    digest = hashlib.sha256(f"{mesh}\n{local}".encode()).hexdigest()
    told: list[Any] = [None] * mesh.ranks
    dist.all_gather_object(told, digest)
    others = [rank for rank, found in enumerate(told) if found != told[0]]
    if others:
        raise UsageError(f"ranks {others} were given another program than rank 0")
    space.prepare([node for block in _blocks(local) for node in block])
    is_graph = dist.get_backend() == "nccl" if graph is None else graph
    return RankProgram(mesh, local, space, bucket, backend, carried or {}, is_graph, options or {})


def _blocks(local: Func) -> list[tuple[Node, ...]]:
    found = [local.body]
    for block in found:
        found.extend(inner for node in block.nodes for inner in node.blocks)
    return [block.nodes for block in found]
