"""A rank's program on torch: collectives in the background, segments compiled or op by op."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from stack.errors import StackError, UsageError
from stack.frontends.torch_arrays import from_numpy, to_numpy
from stack.frontends.torch_elementwise import Tensor
from stack.frontends.torch_mesh import LIMIT, RankSpace
from stack.ir.interpreter import evaluate
from stack.ir.mesh import Mesh
from stack.ir.mesh_ops import is_place
from stack.ir.node import Func, Node
from stack.run.compile import compile_func
from stack.run.segments import Meeting, Segment, Step, steps_of

Compute = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass
class RankProgram:
    """The program of this rank, from its parts of the parameters to its parts of the results.

    Attributes:
        backend: compiles segments; "" runs them op by op.
        overlaps: whether collectives run in the background; else each is waited for at once.
        compiled: how many of how many distinct segments the backend compiled.
        peak: most bytes that values held, of the newest run, where `watches`: to count takes the
            host longer than to launch a small segment.
    """

    mesh: Mesh
    local: Func
    space: RankSpace
    bucket: int = 1 << 25
    backend: str = ""
    overlaps: bool = True
    watches: bool = False
    peak: int = 0
    compiled: str = ""
    steps: list[Step] = field(init=False)
    computes: dict[Segment, Compute] = field(init=False)
    free: list[set[Node]] = field(init=False)  # what only a step reads, in memory of its own

    def __post_init__(self) -> None:
        self.steps = steps_of(self.local, self.bucket)
        segments = [s.work for s in self.steps if isinstance(s.work, Segment)]
        made: dict[Func, Compute] = {}
        for segment in segments:
            if segment.func not in made:  # equal layers are one function
                made[segment.func] = self._compute(segment.func)
        self.computes = {s: made[s.func] for s in segments}
        own = {n for s in segments if self._is_compiled(s.func) for n in s.outputs}
        self.free = [own & set(step.last) & _read_once(step) for step in self.steps]
        count = sum(self._is_compiled(func) for func in made)
        self.compiled = f"{count} of {len(made)}"

    def __call__(self, *parts: Tensor) -> list[Tensor]:
        """Raises StackError where another rank does not answer within the time limit."""
        held: dict[Node, Any] = dict(zip(self.local.params, parts, strict=True))
        self.peak = 0
        for step, free in zip(self.steps, self.free, strict=True):
            work = step.work
            args = [self._read(held, n) for n in work.inputs]
            if isinstance(work, Meeting):
                by_node = dict(zip(work.inputs, args, strict=True))
                for node in work.nodes:
                    (x,) = node.args
                    held[node] = self.space.start(node, by_node[x], x in free)
                    if not self.overlaps:
                        self._read(held, node)
            else:
                held.update(zip(work.outputs, self.computes[work](args), strict=True))
            if self.watches:
                self.peak = max(self.peak, _bytes(held))
            for node in step.last:
                del held[node]
        return [self._read(held, r) for r in self.local.results]

    def _read(self, held: dict[Node, Any], node: Node) -> Tensor:
        if node not in held:  # a number
            return self.space.constant(node.attrs["value"])
        value = held[node]
        if not callable(value):  # else it is on its way
            return value
        try:
            held[node] = value()
        except RuntimeError as error:  # of the transport
            raise StackError(
                f"rank {self.space.rank} waits in vain in {node.op} of {node.type}: {error}"
            ) from error
        return held[node]

    def _is_compiled(self, func: Func) -> bool:
        """Whether a segment is for the backend: what asks for the rank's place is not."""
        return bool(self.backend) and not any(map(is_place, func.nodes))

    def _compute(self, func: Func) -> Compute:
        if not self._is_compiled(func):
            return lambda args: evaluate(func.body, args, self.space)
        executable = compile_func(func, self.backend, options=self._options())
        call, accept = executable.call, executable.accept
        if call is None or accept is None:  # it takes storage arrays
            dtypes = [p.dtype for p in func.params], [r.dtype for r in func.results]
            return lambda args: list(
                map(from_numpy, executable.run(list(map(to_numpy, args, dtypes[0]))), dtypes[1])
            )
        return lambda args: call(accept([a.contiguous() for a in args]))

    def _options(self) -> dict[str, Any]:
        if str(self.space.device) == "cpu":
            return {}
        return {"device": str(self.space.device), "graph": False}


def _read_once(step: Step) -> set[Node]:
    """Values that one collective of a step reads, and no other."""
    nodes = step.work.nodes if isinstance(step.work, Meeting) else ()
    read = Counter(a for n in nodes for a in n.args)
    return {n for n, count in read.items() if count == 1}


def _bytes(held: dict[Node, Any]) -> int:
    """Bytes of the memory behind values, each once, and of what is on its way."""
    stores = [v.untyped_storage() for v in held.values() if isinstance(v, torch.Tensor)]
    coming = sum(int(str(n.tensor.bytes)) for n, v in held.items() if callable(v))
    return coming + sum({store.data_ptr(): store.nbytes() for store in stores}.values())


def rank_program(
    mesh: Mesh,
    local: Func,
    device: str = "cpu",
    bucket: int = 1 << 25,
    backend: str = "",
    limit: float = LIMIT,
) -> RankProgram:
    """The program of this rank: from its parts of the parameters to its parts of the results.

    `bucket`: bytes of collectives that start together; `backend` compiles what lies between them;
    `limit`: seconds after which a rank that does not answer is an error on those that wait.
    Raises UsageError on all ranks where one was given another program or mesh.
    """
    space = RankSpace(mesh, device, limit)
    digest = hashlib.sha256(f"{mesh}\n{local}".encode()).hexdigest()
    told: list[Any] = [None] * mesh.ranks
    dist.all_gather_object(told, digest)
    others = [rank for rank, found in enumerate(told) if found != told[0]]
    if others:
        raise UsageError(f"ranks {others} were given another program than rank 0")
    space.prepare([node for block in _blocks(local) for node in block])
    return RankProgram(mesh, local, space, bucket, backend)


def _blocks(local: Func) -> list[tuple[Node, ...]]:
    found = [local.body]
    for block in found:
        found.extend(inner for node in block.nodes for inner in node.blocks)
    return [block.nodes for block in found]
