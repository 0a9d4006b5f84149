"""Every level of a program: is it what its own text reads as?"""

from __future__ import annotations

from typing import Any

import stack.plugins as plugins
from stack.ir import Func, parse
from stack.rewrite import Pipeline
from stack.run.backend import Backend
from stack.run.options import target_of

OPTIONS: dict[str, dict[str, Any]] = {
    "mlir": {},
    "triton": {"target": "sm_90"},
    "cuda": {"target": "sm_90"},
}


def reads_back(func: Func, name: str) -> int:
    """The number of stages of a backend that differ; each is compared with its parsed text."""
    backend: Backend = plugins.load("stack.backends", name)
    machine = target_of(backend, OPTIONS[name])
    assert parse(str(func)) is func
    levels = 1
    for stage, passes in backend.lowering.stages:
        after = Pipeline(passes).run(func, target=machine).func
        if after is not func:
            assert parse(str(after)) is after, stage
            levels += 1
        func = after
    return levels
