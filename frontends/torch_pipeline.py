"""A rank of a pipeline on `torch.distributed`: its stages, in the order of a schedule.

Stages are those of `stack.passes.sharding.strategies.stages`, given as text. Values go from stage
to stage as messages with a tag of their own; replicas of a stage sum its gradients at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from stack.errors import StackError
from stack.frontends.torch_elementwise import Tensor
from stack.frontends.torch_space import TorchSpace
from stack.ir.interpreter import evaluate
from stack.ir.node import Func
from stack.run.pipeline import Work

Place = tuple[str, int]


@dataclass(frozen=True)
class StageProgram:
    """A part of a stage: see `stages.Part`."""

    func: Func
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass
class PipelineRank:
    """One rank.

    Attributes:
        parts: all parts, by place.
        order: what this rank does.
        peers: for each chunk the rank that has it, in this replica.
        results: by name of a value, what it is: the loss, or the gradient of a weight.
        replicas: the group that sums gradients; None where there is one replica.
        pace: seconds that a part takes at least, as if a device computed while the process waits.
        busy: seconds of computing, of the newest step; `peak` most bytes held.
    """

    parts: Mapping[Place, StageProgram]
    order: Sequence[Work]
    peers: Sequence[int]
    results: Mapping[str, str]
    replicas: Any = None
    pace: float = 0.0
    busy: float = 0.0
    peak: int = 0
    sent: dict[tuple[str, int], list[Any]] = field(default_factory=dict[tuple[str, int], list[Any]])

    def __post_init__(self) -> None:
        self.rank = dist.get_rank()
        self.space = TorchSpace("cpu")
        self.makers = {name: at for at, part in self.parts.items() for name in part.makes}
        self.readers: dict[str, list[Place]] = {}
        for at, part in self.parts.items():
            for name in part.reads:
                self.readers.setdefault(name, []).append(at)
        self.tags = {name: i for i, name in enumerate(sorted(self.makers))}

    def step(
        self, weights: Mapping[str, Tensor], batches: Sequence[Mapping[str, Tensor]]
    ) -> tuple[float, dict[str, Tensor]]:
        """The sum of losses that this rank computed, and the mean of gradients of its weights.

        Raises StackError where another rank does not answer within the time limit.
        """
        held: dict[tuple[str, int], Tensor] = {}
        self.busy, self.peak = 0.0, 0
        total, found = 0.0, dict[str, Tensor]()
        for work in self.order:
            part = self.parts.get((work.kind, work.chunk))
            if part is None:
                continue
            args = [
                weights[n] if n in weights else self._value(n, work.batch, held, batches)
                for n in part.reads
            ]
            start = time.perf_counter()
            made = evaluate(part.func.body, args, self.space)
            time.sleep(max(0.0, start + self.pace - time.perf_counter()))
            self.busy += time.perf_counter() - start
            for name, value in zip(part.makes, made, strict=True):
                what = self.results.get(name)
                if what == "loss":
                    total += float(value)
                elif what is not None:
                    found[what] = found[what] + value if what in found else value
                self._keep(name, work, value, held)
            self.peak = max(self.peak, sum(t.untyped_storage().nbytes() for t in held.values()))
            self._drop(part, work, held)
        for works in self.sent.values():
            for message in works:
                message.wait()
        self.sent.clear()
        return total, self._mean(found, len(batches))

    # ---- values

    def _value(
        self,
        name: str,
        batch: int,
        held: dict[tuple[str, int], Tensor],
        batches: Sequence[Mapping[str, Tensor]],
    ) -> Tensor:
        if name in batches[batch]:
            return batches[batch][name]
        if (name, batch) not in held:
            maker = self.makers[name]
            func = self.parts[maker].func
            type_ = func.results[self.parts[maker].makes.index(name)].tensor
            shape = [int(str(n)) for n in type_.shape]
            value = torch.empty(shape, dtype=self.space.dtype(type_.dtype))
            source = self.peers[maker[1]]
            try:
                dist.recv(value, source, tag=self._tag(name, batch))
            except RuntimeError as error:  # of the transport
                raise StackError(
                    f"rank {self.rank} waits in vain for {name} of microbatch {batch} from rank"
                    f" {source}: {error}"
                ) from error
            held[name, batch] = value
        return held[name, batch]

    def _keep(
        self, name: str, work: Work, value: Tensor, held: dict[tuple[str, int], Tensor]
    ) -> None:
        """Hold a value for parts of this rank, and send it to others, once to each."""
        readers = {self.peers[at[1]] for at in self.readers.get(name, ())}
        if self.rank in readers:
            held[name, work.batch] = value
        for target in sorted(readers - {self.rank}):
            message = dist.isend(value.contiguous(), target, tag=self._tag(name, work.batch))
            self.sent.setdefault((name, work.batch), []).append(message)

    def _drop(self, part: StageProgram, work: Work, held: dict[tuple[str, int], Tensor]) -> None:
        """Let go of what no later part of this rank reads."""
        for name in (*part.reads, *part.makes):
            mine = [at for at in self.readers.get(name, ()) if self.peers[at[1]] == self.rank]
            if (name, work.batch) in held and _last(mine) == (work.kind, work.chunk):
                del held[name, work.batch]

    def _tag(self, name: str, batch: int) -> int:
        return batch * len(self.tags) + self.tags[name]

    def _mean(self, found: dict[str, Tensor], count: int) -> dict[str, Tensor]:
        replicas = dist.get_world_size(self.replicas) if self.replicas is not None else 1
        for name in sorted(found):
            if replicas > 1:
                dist.all_reduce(found[name], group=self.replicas)
            found[name] = found[name] / (count * replicas)
        return found


def _last(places: Sequence[Place]) -> Place:
    """The reader that comes last in every schedule: weights after activations after forward."""
    return max(places, key=lambda at: ("FBW".index(at[0]), at[1] if at[0] == "F" else -at[1]))
