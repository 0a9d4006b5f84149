"""One rank of a pipeline on `torch.distributed`: runs its stages in the order of a schedule.

The stages are those of `stack.passes.sharding.strategies.stages`, given as text. Values are sent
from stage to stage; replicas of a stage average each gradient after its last microbatch, beside the
work that is left. Each pair of ranks has one group per direction, since NCCL processes the messages
of a group in order: a rank receives another one's values in the order in which they are sent. It
waits for a value only to use it: the transfer starts before the work that precedes the use.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from stack.errors import StackError
from stack.frontends.torch.distributed.rank_compute import Compute, compute_of, options_beside
from stack.frontends.torch.replay.elementwise_ops import Tensor
from stack.frontends.torch.replay.space import TorchSpace
from stack.sim.pipeline import ChunkProgram, Work

Place = tuple[str, int]
Message = tuple[str, int]  # the name of a value, and its microbatch


@dataclass
class PipelineRank:
    """One rank of a pipeline.

    Attributes:
        parts: all parts, by kind and chunk.
        orders: for each stage its sequence of work; `stage` is this rank's stage.
        peers: for each chunk its rank in this replica; ranks of a stage are consecutive, and
            chunks are assigned to stages round-robin.
        results: maps a value's name to its meaning: the loss, or the gradient of a weight.
        replicas: the group that averages gradients; None if there is one replica.
        pace: minimum seconds per part, to simulate a device while the process waits.
        device, backend: where and by which backend parts run; "" runs them op by op.
        busy: compute seconds of the newest step; `peak`: most bytes of held values.
    """

    parts: Mapping[Place, ChunkProgram]
    orders: Sequence[Sequence[Work]]
    stage: int
    peers: Sequence[int]
    results: Mapping[str, str]
    replicas: Any = None
    pace: float = 0.0
    device: str = "cpu"
    backend: str = ""
    busy: float = 0.0
    peak: int = 0
    sent: list[Any] = field(default_factory=list[Any])
    coming: dict[int, list[Message]] = field(default_factory=dict[int, list[Message]])
    arriving: dict[Message, tuple[Any, Tensor]] = field(
        default_factory=dict[Message, tuple[Any, Tensor]]
    )

    def __post_init__(self) -> None:
        self.rank = dist.get_rank()
        self.space = TorchSpace(self.device)
        self.makers = {name: at for at, part in self.parts.items() for name in part.makes}
        self.readers: dict[str, list[Place]] = {}
        for at, part in self.parts.items():
            for name in part.reads:
                self.readers.setdefault(name, []).append(at)
        options = options_beside(self.space)  # a receive holds processors until its message comes
        self.computes: dict[Place, Compute] = {
            at: compute_of(part.func, self.space, self.backend, options)
            for at, part in self.parts.items()
            if self.peers[at[1]] == self.rank
        }
        self.channels = self._channels()

    @property
    def weights(self) -> list[str]:
        """Names of the program's parameters that parts of this rank read."""
        read = {n for at in self.computes for n in self.parts[at].reads}
        return sorted(read - set(self.makers))

    def step(
        self, weights: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]]
    ) -> tuple[Tensor | float, dict[str, Tensor]]:
        """Returns the sum of losses that this rank computed, and the mean gradients of its weights.

        Raises StackError if another rank does not answer within the time limit.
        """
        held: dict[Message, Tensor] = {}
        self.busy, self.peak = 0.0, 0
        self.coming, self.arriving = self._coming(), {}
        gradients = Gradients(len(batches), self.replicas)
        works = [w for w in self.orders[self.stage] if (w.kind, w.chunk) in self.parts]
        losses: list[Tensor] = []
        for number, work in enumerate(works):
            for near in works[number : number + 2]:
                self._post(near, held, batches)
            losses += self._do(work, weights, batches, held, gradients)
            self.peak = max(self.peak, sum(t.untyped_storage().nbytes() for t in held.values()))
            self._drop(work, held)
        for message in self.sent:
            message.wait()
        self.sent.clear()
        return sum(losses, 0.0), gradients.means()

    def _do(
        self,
        work: Work,
        weights: Mapping[str, Tensor],
        batches: Sequence[Mapping[str, Tensor]],
        held: dict[Message, Tensor],
        gradients: Gradients,
    ) -> list[Tensor]:
        """Computes a part for a microbatch, keeps and sends its values, and adds its gradients.

        Returns its losses. Afterwards nothing refers to other results, so that the next part can
        use their memory.
        """
        part = self.parts[work.kind, work.chunk]
        args = [
            weights[n] if n in weights else self._value(n, work.batch, held, batches)
            for n in part.reads
        ]
        start = time.perf_counter()
        made = self.computes[work.kind, work.chunk](args)
        if self.pace:
            time.sleep(max(0.0, start + self.pace - time.perf_counter()))
        self.busy += time.perf_counter() - start
        losses: list[Tensor] = []
        for name, value in zip(part.makes, made, strict=True):
            what = self.results.get(name)
            if what == "loss":
                losses.append(value)
            elif what is not None:
                is_own = bool(self.backend) and name not in self.readers
                gradients.add(what, value if is_own else value.clone())
            self._keep(name, work, value, held)
        return losses

    # ---- messages

    def _channels(self) -> dict[tuple[int, int], Any]:
        """Creates a group for each pair of communicating ranks; all ranks create all groups.

        NCCL connects a pair at its first message, and both ranks wait for that. So a first message
        is sent here, in the same order on all ranks: later a rank may receive before it sends what
        the other one waits for.
        """
        stages = len(self.orders)
        pairs = {
            (at[1] % stages, to[1] % stages)
            for name, at in self.makers.items()
            for to in self.readers.get(name, ())
        }
        replicas = dist.get_world_size() // stages
        found: dict[tuple[int, int], Any] = {}
        for source, target in sorted(pairs):
            for replica in range(replicas) if source != target else ():
                pair = (source * replicas + replica, target * replicas + replica)
                found[pair] = dist.new_group(sorted(pair))
        first = torch.zeros(1, device=self.device)
        for (source, target), group in found.items():
            if self.rank == source:
                dist.send(first, target, group)
            elif self.rank == target:
                dist.recv(first, source, group)
        return found

    def _targets(self, name: str, source: int) -> list[int]:
        """Returns the other ranks that read the value `name`, which rank `source` computes."""
        return sorted({self.peers[at[1]] for at in self.readers.get(name, ())} - {source})

    def _coming(self) -> dict[int, list[Message]]:
        """Returns for each other rank the messages that it sends to this rank in a step, in order.

        A message is the name of a value and the number of its batch.
        """
        found: dict[int, list[Message]] = {}
        for order in self.orders:
            for work in order:
                part, source = self.parts.get((work.kind, work.chunk)), self.peers[work.chunk]
                if part is None or source == self.rank:
                    continue
                names = [n for n in part.makes if self.rank in self._targets(n, source)]
                found.setdefault(source, []).extend((n, work.batch) for n in names)
        return found

    def _post(
        self, work: Work, held: Mapping[Message, Tensor], batches: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Starts to receive the values of other ranks that some work reads."""
        for name in self.parts[work.kind, work.chunk].reads:
            if name not in self.makers or name in batches[work.batch]:
                continue
            source = self.peers[self.makers[name][1]]
            message = (name, work.batch)
            while source != self.rank and message not in held and message not in self.arriving:
                self._receive(source)

    def _receive(self, source: int) -> None:
        """Starts to receive the next message from the rank `source`."""
        name, batch = self.coming[source].pop(0)
        maker = self.parts[self.makers[name]]
        type_ = maker.func.results[maker.makes.index(name)].tensor
        shape = [int(str(n)) for n in type_.shape]
        value = torch.empty(shape, dtype=self.space.dtype(type_.dtype), device=self.device)
        started = dist.irecv(value, source, self.channels[source, self.rank])
        self.arriving[name, batch] = started, value

    def _arrived(self, message: Message) -> Tensor:
        """Waits for a message that is being received; returns its value."""
        started, value = self.arriving.pop(message)
        try:
            started.wait()
        except RuntimeError as error:  # raised by the transport
            name, batch = message
            source = self.peers[self.makers[name][1]]
            raise StackError(
                f"rank {self.rank} did not receive {name} of microbatch {batch} from rank"
                f" {source}: {error}"
            ) from error
        return value

    # ---- values

    def _value(
        self,
        name: str,
        batch: int,
        held: dict[Message, Tensor],
        batches: Sequence[Mapping[str, Tensor]],
    ) -> Tensor:
        if name in batches[batch]:
            return batches[batch][name]
        if (name, batch) not in held:
            held[name, batch] = self._arrived((name, batch))
        return held[name, batch]

    def _keep(self, name: str, work: Work, value: Tensor, held: dict[Message, Tensor]) -> None:
        """Stores a computed value if this rank reads it; sends it to each other rank that does.

        `held`: the values stored on this rank, by name and batch.
        """
        if any(self.peers[at[1]] == self.rank for at in self.readers.get(name, ())):
            held[name, work.batch] = value
        for target in self._targets(name, self.rank):
            channel = self.channels[self.rank, target]
            self.sent.append(dist.isend(value.contiguous(), target, channel))

    def _drop(self, work: Work, held: dict[Message, Tensor]) -> None:
        """Deletes values that a part reads or computes, if no later part of this rank reads it."""
        part = self.parts[work.kind, work.chunk]
        for name in (*part.reads, *part.makes):
            mine = [at for at in self.readers.get(name, ()) if self.peers[at[1]] == self.rank]
            if (name, work.batch) in held and _last(mine) == (work.kind, work.chunk):
                del held[name, work.batch]


class Gradients:
    """Means of gradients over `count` microbatches and the ranks of `replicas`, if not None."""

    def __init__(self, count: int, replicas: Any) -> None:
        self.count, self.replicas = count, replicas
        self.sizes = 1 if replicas is None else dist.get_world_size(replicas)
        self.found: dict[str, Tensor] = {}
        self.seen: Counter[str] = Counter()
        self.started: list[Any] = []

    def add(self, name: str, value: Tensor) -> None:
        """Adds the gradient of a microbatch, which may be overwritten. Starts to average the
        replicas' gradients after the last one.
        """
        self.seen[name] += 1
        mean = self.found.setdefault(name, value)
        if mean is not value:
            mean.lerp_(value, 1 / self.seen[name])  # one pass adds and divides
        if self.seen[name] == self.count and self.sizes > 1:
            kind = dist.ReduceOp.AVG if self._averages else dist.ReduceOp.SUM
            self.started.append(dist.all_reduce(mean, kind, self.replicas, async_op=True))

    def means(self) -> dict[str, Tensor]:
        """Waits for the replicas, and returns the mean gradients."""
        for reduction in self.started:
            reduction.wait()
        if self.sizes > 1 and not self._averages:
            for mean in self.found.values():
                mean.div_(self.sizes)
        return self.found

    @property
    def _averages(self) -> bool:
        return dist.get_backend(self.replicas) == "nccl"


def _last(places: Sequence[Place]) -> Place:
    """Returns the part that runs last in every schedule, among those that read one value.

    F (forward) runs before B (gradients of activations) before W (gradients of weights). Within F
    the last chunk runs last, within B and W the first one.
    """
    return max(places, key=lambda at: ("FBW".index(at[0]), at[1] if at[0] == "F" else -at[1]))
