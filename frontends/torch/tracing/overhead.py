"""Skips work that Dynamo does in each capture for disabled logs and for modules not loaded."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch._logging
from torch._dynamo import guards, symbolic_convert, utils
from torch._dynamo.variables import higher_order_ops

from stack.frontends.torch.tracing.meta_kernels import meta_kernels
from stack.frontends.torch.tracing.value_cache import Values

# Dynamo settings that not every torch has: garbage collection after each capture, and profiler
# marks in the generated code, which take as long as the rest of it.
_OFF = ("run_gc_after_compile", "record_runtime_overhead")
_LOCAL_MAP = "torch.distributed.tensor.experimental._func_map"
_ENABLED: Any = torch._logging._internal.log_state.is_artifact_enabled


@contextmanager
def spared() -> Iterator[None]:
    """Context in which captures skip that work. All threads share its patches: hold torch's lock.

    Skipped are: timing the guards with emptied caches, for the log of guards; writing each guard's
    source line into its text, which we cut off; tokenizing source files to find the functions of
    lines, for call traces; comparing values with a function whose module imports half of
    `torch.distributed`; garbage collection, which we hold back; and profiler marks around each
    graph call. Example values of equal nodes are computed once, see `tracing.value_cache`.
    """
    with ExitStack() as stack:
        known = {name: False for name in _OFF if hasattr(torch._dynamo.config, name)}
        stack.enter_context(torch._dynamo.config.patch(known))
        stack.enter_context(meta_kernels())
        for holder, name, plain in _plain():
            if hasattr(holder, name):  # depends on the torch version
                stack.enter_context(mock.patch.object(holder, name, plain))
        yield


def _plain() -> Iterator[tuple[Any, str, Any]]:
    """Yields triples: the object to patch, the attribute, and its replacement."""
    if not guards.guards_log.isEnabledFor(logging.DEBUG):
        yield guards, "profile_guard_manager", lambda *_: 0.0
        if not any(map(_ENABLED, ("guards", "recompiles", "recompiles_verbose"))):
            yield guards, "get_verbose_code_part", lambda part, _: part
    if not any(map(_ENABLED, ("trace_call", "trace_source"))):
        yield symbolic_convert, "get_funcname", lambda *_: None
    yield utils, "run_node", Values(utils.run_node)
    if _LOCAL_MAP not in sys.modules:  # then no value can be its function
        local_map = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
        asked: Any = getattr(local_map, "should_wrap_in_hop", None)
        yield local_map, "should_wrap_in_hop", lambda v: _LOCAL_MAP in sys.modules and asked(v)
