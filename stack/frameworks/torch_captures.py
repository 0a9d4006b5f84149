"""Recovery of torch from a failed capture of a CUDA graph."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator

import torch


@contextlib.contextmanager
def recovering(device: torch.device) -> Generator[None]:
    """Surrounds the capture of a CUDA graph; re-raises its error after cleaning up.

    A failed capture leaves its stream as the current one, and torch's random generators in
    capturing mode: every later `torch.randn` on the device would fail. A capture that succeeds,
    even of nothing, ends this mode.
    """
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.current_stream(device)
    try:
        yield
    except Exception:
        torch.cuda.set_stream(stream)
        with (
            warnings.catch_warnings(),
            torch.cuda.device(device),
            contextlib.suppress(RuntimeError),
        ):
            warnings.simplefilter("ignore")  # an empty graph
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
                pass
        raise
