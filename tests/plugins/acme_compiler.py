"""A third party's compiler: a fusion pass, an operator, a schedule policy and a backend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

import stack
from stack.ir.data import decode, encode
from stack.ir.func import Func
from stack.ir.node import Node
from stack.passes.fuse import Fuse
from stack.passes.schedule import LOOPS
from stack.rewrite.fusion import FusionRule
from stack.rewrite.verdict import NOT_MINE, Ok
from stack.run.backend import Backend, Executable, Kernel, Lowering


class Siblings(FusionRule):
    """Two loops that read one value: it is read once."""

    siblings = True
    stage = 1

    def legal(self, producer: Any, consumer: Any, maps: Any) -> Any:
        return Ok if producer.kind == consumer.kind == "loop" else NOT_MINE


@dataclass(frozen=True)
class AcmeFuse(stack.Pass):
    """Fuse, with neighbours that read one value too."""

    name: ClassVar[str] = "acme_fuse"

    def run(self, func: Func, log: Any) -> Func:
        return replace(Fuse(), rules=("acme_compiler:Siblings",)).run(func, log)


@stack.op("acme_compiler.twice", rule="... a -> ... a")
def twice(np: Any, x: Any) -> Any:
    """x and x once more."""
    return x + x


def generous(group: Node, target: Any) -> Any:
    """The schedules of our own blocks, most warps first."""
    policy = LOOPS["blocks"](group, target)
    if policy is not None:
        usual: Callable[[], list[Any]] = policy.candidates
        policy.candidates = lambda: sorted(usual(), key=lambda found: -found[0].warps)
    return policy


def compile_numpy(func: Func, options: Mapping[str, Any]) -> Executable:
    """Every group by the reference interpreter: slow, and a backend all the same."""

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        held = [decode(a, p.dtype) for a, p in zip(arrays, func.params, strict=True)]
        found = func.interpret(*held)
        results = found if isinstance(found, tuple) else (found,)
        return [encode(r, n.dtype) for r, n in zip(results, func.results, strict=True)]

    kernels = [
        Kernel(str(n.attrs["name"]), "generated", stage_node=func.body.names[n], source=("acme:1",))
        for n in func.nodes
        if n.op == "fusion"
    ]
    return Executable(run, kernels)


BACKEND = Backend(
    name="acme_numpy",
    compile=compile_numpy,
    missing=lambda: None,
    lowering=Lowering(stages=(("canonical", "inline,canonicalize"), ("fused", "acme_fuse"))),
)
