"""The partitioners of JAX: XLA's, read from its optimized HLO, and Shardy's own passes."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxlib.mlir import passmanager

from stack.errors import StackError
from stack.frontends.jax.replay import space as jax_space
from stack.frontends.jax.sharding.specs import to_spec
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.space import Array
from stack.ir.types import TensorType
from stack.run.partitioner import Collective, Partition

_HLO = re.compile(
    r"= (\(.*?\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\("
)
_ARRAY = re.compile(r"([a-z]+)(\d+)?\w*\[([\d,]*)\]")
_PIPELINE = (
    "sdy-propagation-pipeline",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "func.func(sdy-reshard-to-collectives)",
    "func.func(sdy-populate-op-sharding-rules)",
)
_SDY = re.compile(
    r"sdy\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute) (.*?)%\S+"
    r".*?out_sharding=<@\w+, \[(.*)\].*?> : tensor<(.*?)>"
)
_WINDOW = re.compile(
    r"= stablehlo\.(\w+).*sdy\.sharding_per_value<\[<@\w+, \[(.*?)\]>\]>"
    r".*op_sharding_rule<.*\)->\(\[(.*?)\]\).*permutation=\{(.*?)\}"
)
_AXIS = re.compile(r'"(\w+)"(?::\(\d+\)(\d+))?')


class _Placed(jax_space.JaxSpace):
    """Replays a program with a sharding constraint for each value that has a sharding."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self.mesh = mesh

    def settle(self, value: Array, type_: TensorType) -> Array:
        made, place = super().settle(value, type_), _place(self.mesh, type_)
        return made if place is None else jax.lax.with_sharding_constraint(made, place)


def _place(mesh: Mesh, type_: TensorType) -> NamedSharding | None:
    return None if type_.sharding is None else NamedSharding(mesh, to_spec(type_.sharding))


def _lowered(func: Func) -> Any:
    sizes = dict(func.meshes[0].axes)
    devices = np.array(jax.devices()[: math.prod(sizes.values())])
    mesh = Mesh(devices.reshape(*sizes.values()), tuple(sizes))
    space = _Placed(mesh)

    def replay(*arrays: Any) -> tuple[Any, ...]:
        return tuple(evaluate(func.body, arrays, space))

    with jax_space.x64(func):
        made = jax.jit(
            replay,
            in_shardings=[_place(mesh, p.tensor) for p in func.params],
            out_shardings=tuple(_place(mesh, r.tensor) for r in func.results),
        )
        given = [
            jax.ShapeDtypeStruct(tuple(map(int, map(str, p.shape))), space.dtype(p.dtype))
            for p in func.params
        ]
        return made.lower(*given)


def xla(func: Func) -> Partition:
    """The collectives in one device's HLO after XLA's SPMD partitioner and optimizer."""
    lowered = _lowered(func)
    start = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    peak = sum(
        int(getattr(memory, f"{what}_size_in_bytes")) for what in ("argument", "output", "temp")
    )
    return Partition(hlo_collectives(compiled.as_text()), seconds, peak)


def hlo_collectives(text: str) -> tuple[Collective, ...]:
    """The collectives in optimized HLO, with the bytes of each rank's operand."""
    found: list[Collective] = []
    for line in text.splitlines():
        match = _HLO.search(line)
        if match is None:
            continue
        op = {"collective-permute": "permute"}.get(match[2], match[2].replace("-", "_"))
        made = [_bytes(*array.groups()) for array in _ARRAY.finditer(match[1])]
        ranks = 2 if op == "permute" else _group(line)
        held = sum(made)
        if f"{match[2]}-start(" in line:
            held = made[0]
        elif op == "all_gather":
            held //= ranks
        elif op == "reduce_scatter":
            held *= ranks
        found.append(Collective(op, ranks, held))
    return tuple(found)


def _bytes(kind: str, bits: str | None, shape: str) -> int:
    width = 1 if kind == "pred" else int(bits or 8) // 8
    return width * math.prod(int(n) for n in shape.split(",") if n)


def _group(line: str) -> int:
    """The number of ranks per group: groups are listed, counted, or axes of a mesh."""
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
    if listed:
        return listed[1].count(",") + 1
    counted = re.search(r"replica_groups=\[(\d+),(\d+)\]", line)
    if counted:
        return int(counted[2])
    named = re.search(r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}", line)
    if named is None:
        raise StackError(f"no groups in {line.strip()!r}")
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
    return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", named[2]))


def shardy(func: Func) -> Partition:
    """The collectives after Shardy's propagation and explicit reshards."""
    module = _lowered(func).compiler_ir("stablehlo")
    start = time.perf_counter()
    try:
        with module.context:
            for step in _PIPELINE:
                manager = passmanager.PassManager.parse(f"builtin.module({step})")
                manager.run(module.operation)
    except Exception as error:  # the bindings raise several kinds
        raise StackError(str(error).splitlines()[0]) from error
    seconds = time.perf_counter() - start
    text = str(module)
    _check_windows(text)
    return Partition(sdy_collectives(text, dict(func.meshes[0].axes)), seconds)


def _check_windows(text: str) -> None:
    """Raise StackError if Shardy leaves a window over a sharded dim to a later compiler pass."""
    for op, lies, made, windows in _WINDOW.findall(text):
        split = re.findall(r"\{(.*?)\}", lies)
        for axes, factors in zip(split, made.split(", "), strict=True):
            if axes and any(name in factors for name in windows.split(", ")):
                raise StackError(f"leaves the halo exchange of {op} to the compiler after it")


def sdy_collectives(text: str, sizes: dict[str, int]) -> tuple[Collective, ...]:
    """The collectives of a Shardy module on one rank; its types have global shapes."""
    found: list[Collective] = []
    for op, over, lies, whole in _SDY.findall(text):
        *shape, kind = whole.split("x")
        bits = int(re.sub(r"\D", "", kind) or 8)
        made = max(bits // 8, 1) * math.prod(map(int, shape)) // _ranks(lies, sizes)
        ranks = 2 if op == "collective_permute" else _ranks(over, sizes)
        held = {"all_gather": made // ranks, "reduce_scatter": made * ranks}.get(op, made)
        found.append(Collective(op.replace("collective_", ""), ranks, held))
    return tuple(found)


def _ranks(text: str, sizes: dict[str, int]) -> int:
    return math.prod(int(part or sizes[name]) for name, part in _AXIS.findall(text))
