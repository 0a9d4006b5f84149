"""The same model under torch's own strategies: FSDP2, DTensor, context parallel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Call = Callable[[], Tensor]


def fsdp2(model: Any, batch: Batch, rate: float, compiled: bool = False) -> Call:
    """Applies `fully_shard` to every layer of a model; each rank gets a part of the batch."""
    ranks = dist.get_world_size()
    _sharded(model, compiled)
    x, y = (t.chunk(ranks)[dist.get_rank()] for t in batch)
    return _stepping(model, (x, y), rate)


def tensor_parallel(
    model: Any, batch: Batch, rate: float, compiled: bool = False, sequence: bool = False
) -> Call:
    """Uses DTensor's column and row styles and a parallel loss; `sequence` splits sequences too."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    mesh = _mesh(batch[0])
    parts = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        **{n: ColwiseParallel(input_layouts=parts) for n in ("wq", "wk", "wv", "gate", "up")},
        **{n: RowwiseParallel(output_layouts=parts) for n in ("wo", "down")},
    }
    if sequence:
        norm = SequenceParallel(use_local_output=True)
        embed = RowwiseParallel(input_layouts=Replicate(), output_layouts=parts)
        parallelize_module(model, mesh, {"embed": embed, "norm": norm})
        plan |= {"before": norm, "between": norm}
    head: Any = ColwiseParallel(
        input_layouts=parts, output_layouts=Shard(-1), use_local_output=False
    )
    parallelize_module(model, mesh, {"head": head})
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
        if compiled:
            layer.compile()
    return _stepping(model, batch, rate, loss_parallel)


def context_parallel(model: Any, batch: Batch, rate: float) -> Call:
    """Splits sequences with torch's zigzag ring attention; shards weights with `fully_shard`."""
    from torch.distributed.tensor.experimental import context_parallel as parts

    mesh = _mesh(batch[0])
    _sharded(model)
    x, y = (t.clone() for t in batch)

    def entered() -> AbstractContextManager[Any]:
        buffers = [x, y, model.cos, model.sin]
        return parts(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0])

    return _stepping(model, (x, y), rate, entered)


def _mesh(x: Tensor) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(x.device.type, (dist.get_world_size(),))


def _sharded(model: Any, compiled: bool = False) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        if compiled:
            layer.compile()
        fully_shard(layer)
    fully_shard(model)


def _stepping(
    model: nn.Module,
    batch: Batch,
    rate: float,
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Call:
    kinds: dict[Any, list[Tensor]] = {}  # distributed weights need a separate update
    for weight in model.parameters():
        kinds.setdefault(type(weight.data), []).append(weight)
    optimizer = torch.optim.SGD([{"params": own} for own in kinds.values()], lr=rate)

    def step() -> Tensor:
        optimizer.zero_grad()
        with inside():
            loss = model(*batch)
            loss.backward()
        optimizer.step()
        loss = loss.detach()
        return loss.full_tensor() if hasattr(loss, "full_tensor") else loss

    return step
