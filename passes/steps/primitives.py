"""Imports all primitives, so that `parse_steps` knows them by name."""

from __future__ import annotations

from stack.passes.steps.assume import Assume
from stack.passes.steps.bind import Bind
from stack.passes.steps.block import BlockStates
from stack.passes.steps.bound import BoundLoops
from stack.passes.steps.branch import Branch
from stack.passes.steps.compute_with import ComputeWith
from stack.passes.steps.dot_parts import DotParts
from stack.passes.steps.evict import Evict
from stack.passes.steps.fission import Fission
from stack.passes.steps.fuse import Fuse
from stack.passes.steps.hold import Hold
from stack.passes.steps.launch import Launch
from stack.passes.steps.microkernel import Microkernel
from stack.passes.steps.partition import Partition
from stack.passes.steps.peel import Peel
from stack.passes.steps.pipeline import Pipeline
from stack.passes.steps.rasterize import Rasterize
from stack.passes.steps.register_tile import RegisterTile
from stack.passes.steps.reorder import Reorder
from stack.passes.steps.reverse import Reverse
from stack.passes.steps.rewrite import Rewrite
from stack.passes.steps.rfactor import Rfactor
from stack.passes.steps.sink import Sink
from stack.passes.steps.specialize import Specialize
from stack.passes.steps.split import Split
from stack.passes.steps.stage import Stage
from stack.passes.steps.stage_mem import StageMem
from stack.passes.steps.step import IllegalStep, Step, applied, parse_steps, run_steps
from stack.passes.steps.tensorize import Tensorize
from stack.passes.steps.threads import Threads
from stack.passes.steps.unroll import Unroll
from stack.passes.steps.vectorize import Vectorize
from stack.passes.steps.window import WindowLoads

__all__ = [
    "Assume",
    "Bind",
    "BlockStates",
    "Branch",
    "ComputeWith",
    "DotParts",
    "Evict",
    "Fission",
    "Fuse",
    "Hold",
    "IllegalStep",
    "Launch",
    "BoundLoops",
    "Microkernel",
    "Partition",
    "Peel",
    "Pipeline",
    "Rasterize",
    "RegisterTile",
    "Reorder",
    "Reverse",
    "Rewrite",
    "Rfactor",
    "Sink",
    "Specialize",
    "Split",
    "Stage",
    "StageMem",
    "Step",
    "Tensorize",
    "Threads",
    "Unroll",
    "Vectorize",
    "WindowLoads",
    "applied",
    "parse_steps",
    "run_steps",
]
