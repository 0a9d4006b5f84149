"""Where equations come from: the user's source line, also inside nested calls."""

from __future__ import annotations

import os
from typing import Any

from jax._src import source_info_util

_FRONTENDS = os.path.dirname(os.path.abspath(__file__))
_CORE = [os.path.join(os.path.dirname(_FRONTENDS), "stack", name) for name in ("hosted", "run")]


def _is_ours(file_name: str) -> bool:
    folder = os.path.dirname(os.path.realpath(file_name))
    return folder in map(os.path.realpath, (_FRONTENDS, *_CORE))


def line_of(eqn: Any) -> str:
    """`block.py:42 attention`, the innermost line of the user's own code; empty if there is none.

    JAX cuts the stack at the boundary of a nested call. An equation without a line of its own is
    inside a library function such as `jnp.where`, and comes from the line that calls it.
    """
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if not _is_ours(frame.file_name):
            function = frame.function_name.rpartition("<locals>.")[2]
            return f"{os.path.basename(frame.file_name)}:{frame.start_line} {function}"
    return ""
