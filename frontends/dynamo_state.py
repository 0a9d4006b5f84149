"""What a captured program depends on besides its arguments, asked again before each call.

Dynamo's own guards say which attributes, training flags, globals and closed-over values a trace
has read. Those on modes that do not change what our code computes (gradients, threads) are left
out, and every tensor that the program is bound to has to be the same object: what is written into
it is seen, what replaces it is not.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._dynamo import guards
from torch._dynamo.convert_frame import CaptureOutput, _get_frame
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import NumpyTensorSource
from torch._dynamo.utils import dynamo_timed, get_metrics_context
from torch.utils._ordered_set import OrderedSet

from stack.frontends.torch_precision import convs_round

DEVICES = ("cpu", "cuda")


class State:
    """Guards of one capture, over the arguments that it was made with."""

    def __init__(self, output: CaptureOutput, fn: Any, args: Sequence[Any]) -> None:
        found = output.graph_capture_output
        assert output.backend_input is not None
        holders = output.backend_input.graph_module.graph.find_nodes(op="placeholder")
        sources = found.output_graph.export_metadata.graph_input_idx_to_local_source
        wanted = found.output_graph.guards
        # those without a name are on global modes and on sizes, which our own code looks at
        wanted.inner = OrderedSet(g for g in wanted if g.name)
        for place, source in sources.items():
            if not isinstance(holders[place].meta.get("example_value"), torch.Tensor):
                continue
            held = source.base if isinstance(source, NumpyTensorSource) else source
            if held is not None:
                wanted.add(held.make_guard(GuardBuilder.ID_MATCH))
        frame = _get_frame(fn, tuple(args))
        with get_metrics_context(), dynamo_timed("build_guards"), _without_logs():
            made = found.build_guards(frame.code)
        self._guards: Any = made.guard_manager
        self._locals = frame.locals
        self._cells = list(zip(frame.code.co_freevars, frame.closure))
        self._modes = _modes()

    def changed(self) -> str:
        """What is no longer as it was captured; empty when nothing is."""
        if torch.is_inference_mode_enabled():  # tensors look different there
            with torch.inference_mode(False):
                return self.changed()
        for name, cell in self._cells:
            self._locals[name] = cell.cell_contents
        if _modes() != self._modes:
            return f"modes (default type, autocast, TF32): {_modes()}, not {self._modes}"
        if self._guards.check(self._locals):
            return ""
        parts = self._guards.check_verbose(self._locals).verbose_code_parts
        return "; ".join(part.partition("  # ")[0].strip() for part in parts) or "a guard"


@contextmanager
def _without_logs() -> Generator[None]:
    """Guards without what is for logs: their own time, taken with empty caches, and weights in
    print, which on a GPU takes longer than all guards."""
    with (
        mock.patch.object(guards, "profile_guard_manager", lambda *_: 0.0, create=True),
        mock.patch.object(torch.Tensor, "__repr__", object.__repr__),
    ):
        yield


def _modes() -> tuple[Any, ...]:
    casts = {d: torch.get_autocast_dtype(d) for d in DEVICES if torch.is_autocast_enabled(d)}
    return torch.get_default_dtype(), casts, convs_round()
