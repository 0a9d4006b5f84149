"""Wraps a program on a torch device as an `Executable`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from stack.ir.func import Func
from stack.run.backend import Executable, Kernel
from stack.wings import call_if_here

from ..runtime.program import BlockProgram
from .tensors import adopt, download, upload
from .torch_device import TorchDevice


def default_device() -> str:
    """ "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def executable(
    func: Func,
    program: BlockProgram,
    kernels: Sequence[Kernel],
    artifacts: dict[str, str | Callable[[], str]],
    graph: bool = True,
) -> Executable:
    """Returns the `Executable` that `stack.compile` runs.

    Args:
        func: the function that `program` was planned from.
        kernels: one record for each step.
        artifacts: later stages as text.
        graph: replay CUDA graphs when addresses repeat; False launches step by step.
    """
    entering = [p.tensor for p in func.params]
    leaving = [r.tensor for r in func.results]
    assert isinstance(program.device, TorchDevice)
    device = program.device.where
    replays = call_if_here("device-replay", program) if graph else None
    why_stepwise = "the wing 'calls' is missing" if graph else "graph=False asks for it"

    prepare = partial(upload, types=entering, device=device)
    accept = partial(adopt, types=entering, device=device)
    finish = partial(download, types=leaving)

    def profile(arrays: Sequence[Any]) -> list[float]:
        on_host = all(isinstance(a, np.ndarray) for a in arrays)
        inputs = prepare(arrays) if on_host else accept(arrays)
        program.run(inputs)
        return program.profile(inputs)

    return Executable(
        run=lambda arrays: finish(program.run(prepare(arrays))),
        kernels=kernels,
        artifacts=artifacts,
        counts_what="steps of the program: generated kernels and library calls",
        prepare=prepare,
        call=replays.run if replays else program.run,
        finish=finish,
        device=str(device),
        accept=accept,
        wait=partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None,
        arrays="torch",
        by_address=functools.cache(replays.by_address) if replays else lambda: None,
        call_dense=replays.call_dense if replays else None,
        peak_bytes=program.peak_bytes,
        profile=profile,
        stepwise=lambda: replays.problem if replays else why_stepwise,
        foreign=functools.cache(lambda: call_if_here("device-xla", func, program)),
    )
