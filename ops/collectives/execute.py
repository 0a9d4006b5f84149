"""Runs schedules: by point-to-point messages of torch.distributed, or with NumPy in one process.

Inputs are treated as flat arrays of elements. All chunks are equally long: the last one is padded
with zeros, which do not appear in results.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stack.errors import StackError, UsageError
from stack.ops.collectives.schedule import Schedule, Step, Transfer, play

Tensor = torch.Tensor
LIMIT = timedelta(seconds=60)  # how long a step may wait for other ranks


def simulate(schedule: Schedule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Computes the results of all ranks, in this process.

    `inputs`: an array per rank, all of one shape and dtype. Results have the shape of the input if
    they have its size (all-reduce, broadcast, permute, all-to-all); else they are flat. Raises
    UsageError for inputs that do not fit the schedule.
    """
    shapes = {(a.shape, a.dtype) for a in inputs}
    if len(inputs) != schedule.ranks or len(shapes) != 1:
        raise UsageError(f"{schedule.ranks} ranks need as many arrays of one shape, got {shapes}")
    size = check_size(schedule, inputs[0].size)
    state: list[list[Any]] = [[None] * schedule.slots for _ in inputs]
    for rank, array in enumerate(inputs):
        padded = np.zeros(size * schedule.chunks, array.dtype)
        padded[: array.size] = array.ravel()
        for slot, part in zip(schedule.inputs[rank], padded.reshape(-1, size), strict=True):
            state[rank][slot] = part
    play(schedule, state, np.add)
    found: list[np.ndarray] = []
    for rank, array in enumerate(inputs):
        joined = np.concatenate([state[rank][slot] for slot in schedule.results[rank]])
        length = result_size(schedule, array.size)
        made = joined[:length]
        found.append(made.reshape(array.shape) if length == array.size else made)
    return found


def run(
    schedule: Schedule,
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    limit: timedelta = LIMIT,
    agrees: bool = True,
) -> Tensor:
    """Returns this rank's result, by messages between the ranks of a process group.

    Args:
        tensor: this rank's input, with the same shape and dtype on all ranks, on any device that
            the group's backend supports. It is not modified.
        limit: how long a step may wait; then every waiting rank raises.
        agrees: compare the arguments of all ranks first. Otherwise a rank with different arguments
            is only detected by the time limit.

    Raises UsageError if ranks disagree or the schedule is for another number of ranks, and
    StackError if a rank does not answer.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if ranks != schedule.ranks:
        raise UsageError(f"the schedule is for {schedule.ranks} ranks, the group has {ranks}")
    if agrees:
        _agree(schedule, tensor, ranks, group)
    size = check_size(schedule, tensor.numel())
    buffer = tensor.new_zeros(schedule.slots, size)
    padded = buffer.new_zeros(schedule.chunks * size)
    padded[: tensor.numel()] = tensor.reshape(-1)
    own = Transfer(rank, rank, tuple(range(schedule.chunks)), schedule.inputs[rank])
    _put(buffer, own, padded.view(schedule.chunks, size))
    for number, step in enumerate(schedule.steps, start=1):
        try:
            _take(step, buffer, rank, group, limit)
        except RuntimeError as error:  # from the transport
            peers = sorted({r for t in step for r in (t.source, t.target)} - {rank})
            raise StackError(
                f"{schedule.collective} {schedule.algorithm}, step {number} of"
                f" {len(schedule.steps)}: rank {rank} waits for ranks {peers} in vain: {error}"
            ) from error
    length = result_size(schedule, tensor.numel())
    made = _rows(buffer, schedule.results[rank]).reshape(-1)[:length]
    return made.view(tensor.shape) if length == tensor.numel() else made


def _take(
    step: Step, buffer: Tensor, rank: int, group: dist.ProcessGroup | None, limit: timedelta
) -> None:
    """Execute one step of a schedule for this rank: its sends, receives and local copies.

    All slots are read before any is written.
    """
    mine = [t for t in step if rank in (t.source, t.target)]
    messages: list[dist.P2POp] = []
    parts: list[tuple[Transfer, Tensor]] = []
    for t in mine:
        if t.source == rank:
            part = _rows(buffer, t.reads)
            if t.is_local:
                parts.append((t, part))
            else:
                messages.append(dist.P2POp(dist.isend, part, group=group, group_peer=t.target))
        else:
            part = buffer.new_empty(len(t.writes), buffer.shape[1])
            parts.append((t, part))
            messages.append(dist.P2POp(dist.irecv, part, group=group, group_peer=t.source))
    if messages:
        # NCCL waits on streams, and its group has its own limit; with a limit here the host would
        # wait
        wait = () if buffer.is_cuda else (limit,)
        for work in dist.batch_isend_irecv(messages):
            work.wait(*wait)
    # local parts are also copied before anything is written
    for t, part in [(t, part.clone() if t.is_local else part) for t, part in parts]:
        _put(buffer, t, part)


def _put(buffer: Tensor, transfer: Transfer, part: Tensor) -> None:
    runs = _runs(transfer.writes)
    for run, piece in zip(runs, part.split([run.stop - run.start for run in runs]), strict=True):
        if transfer.adds:
            buffer[run].add_(piece)
        else:
            buffer[run].copy_(piece)


def _rows(buffer: Tensor, slots: Sequence[int]) -> Tensor:
    """Returns slots of the buffer: a view if they are contiguous, else a copy."""
    parts = [buffer[run] for run in _runs(slots)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _runs(slots: Sequence[int]) -> list[slice]:
    """Merges adjacent slot numbers to slices of the buffer, in the given order."""
    found: list[slice] = []
    for slot in slots:
        if found and found[-1].stop == slot:
            found[-1] = slice(found[-1].start, slot + 1)
        else:
            found.append(slice(slot, slot + 1))
    return found


def _agree(schedule: Schedule, tensor: Tensor, ranks: int, group: Any) -> None:
    """Raise on every rank if one was called with different arguments."""
    own = (schedule.collective, schedule.algorithm, tuple(tensor.shape), str(tensor.dtype))
    told: list[Any] = [None] * ranks
    dist.all_gather_object(told, own, group=group)
    if len(set(told)) > 1:
        text = "; ".join(
            f"rank {r}: {name} {algorithm} of {dtype}{list(shape)}"
            for r, (name, algorithm, shape, dtype) in enumerate(told)
        )
        raise UsageError(f"ranks were called with different arguments: {text}")


def check_size(schedule: Schedule, elements: int) -> int:
    """Elements per chunk. Raises UsageError if a chunk would mix data of several ranks."""
    is_cut = schedule.collective in ("reduce_scatter", "all_to_all")
    if is_cut and elements % schedule.ranks:
        raise UsageError(
            f"{schedule.collective} cuts {elements} elements among {schedule.ranks} ranks, which"
            " does not divide"
        )
    return max(1, -(-elements // schedule.chunks))


def result_size(schedule: Schedule, elements: int) -> int:
    """Number of elements of a rank's result."""
    if schedule.collective == "all_gather":
        return elements * schedule.ranks
    if schedule.collective == "reduce_scatter":
        return elements // schedule.ranks
    return elements
