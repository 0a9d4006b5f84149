"""DTensor on a fake process group: records the collectives it runs op by op on rank 0."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, placement_types
from torch.distributed.tensor.experimental import implicit_replication

from stack.errors import StackError
from stack.frameworks.replaced import replaced
from stack.frameworks.torch_private import TorchDispatchMode, fake_store, process_group, schema_name
from stack.frontends.torch.distributed.placements import to_placements
from stack.frontends.torch.replay.space import TorchSpace
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.types import TensorType
from stack.run.partitioner import Collective, Partition

_OPS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
}


class _Counter(TorchDispatchMode):
    """Records the collectives that are run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Collective] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # its collectives are dispatched separately
        name = schema_name(func).partition("::")[2]
        if name in _OPS:
            group = process_group(args[-1])
            self.found.append(Collective(_OPS[name], group.size(), args[0].nbytes))
        return func(*args, **(kwargs or {}))


class _Placed(TorchSpace):
    """Replays a program on DTensors; a value without a sharding is replicated."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__("cpu")
        self.mesh = mesh

    def settle(self, value: Any, type_: TensorType) -> Any:
        return placed(self.mesh, type_, super().settle(value, type_))


def placed(mesh: DeviceMesh, type_: TensorType, x: Any) -> Any:
    """Redistributes a value to the sharding of its type."""
    if type_.sharding is None:
        return x
    held = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim)
    return held.redistribute(mesh, to_placements(type_.sharding))


def _parameter(mesh: DeviceMesh, type_: TensorType) -> Any:
    shape = tuple(int(str(n)) for n in type_.shape)
    if type_.sharding is None:
        return torch.zeros(shape, dtype=TORCH_DTYPE[type_.dtype])
    local = tuple(int(str(n)) for n in type_.sharding.local_shape(type_.shape))
    part = torch.zeros(local, dtype=TORCH_DTYPE[type_.dtype])
    placements = to_placements(type_.sharding)
    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, mesh, placements, shape=torch.Size(shape), stride=strides)


def _exchange(x: Any, gather: int, shard: int, mesh: DeviceMesh, dim: int) -> Any:
    """Runs the device's all-to-all, which DTensor's CPU path would replace."""
    group = mesh.get_group(dim)
    return torch.ops._dtensor.shard_dim_alltoall(x, gather, shard, group.group_name)


def dtensor(func: Func) -> Partition:
    """Run the program once on fake ranks; the time measured is that of planning."""
    sizes = dict(func.meshes[0].axes)
    ranks = func.meshes[0].ranks
    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    given = [_parameter(mesh, p.tensor) for p in func.params]
    counter = _Counter()
    start = time.perf_counter()
    try:
        with (
            torch.no_grad(),
            implicit_replication(),
            counter,
            replaced(placement_types, "shard_dim_alltoall", _exchange),
        ):
            evaluate(func.body, given, _Placed(mesh))
    except Exception as error:  # DTensor's ops raise many types
        raise StackError(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
    return Partition(tuple(counter.found), time.perf_counter() - start)
