"""Options of a compilation, and variables of the environment that affect it, for its record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from stack.rewrite.pipeline import Pipeline

VARIABLES = (
    *("XLA_FLAGS", "JAX_PLATFORMS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
    *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF"),
    *("TRITON_INTERPRET", "TORCH_LOGS"),
)
_PLAIN = (str, bool, int, float, type(None))


def environment() -> dict[str, str]:
    """Returns those of `VARIABLES` that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def as_json(value: Any) -> Any:
    """Converts an option to what JSON has; a pipeline to its text, other objects to theirs."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): as_json(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in cast("list[Any]", value)]
    return value.text if isinstance(value, Pipeline) else str(value)
