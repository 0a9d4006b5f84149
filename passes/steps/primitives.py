"""Imports all primitives, so that `parse_steps` knows them by name."""

from __future__ import annotations

from stack.passes.steps.accumulate import Accumulate as Accumulate
from stack.passes.steps.accumulate import Prefetch as Prefetch
from stack.passes.steps.assume import Assume as Assume
from stack.passes.steps.bind import Bind as Bind
from stack.passes.steps.block import BlockStates as BlockStates
from stack.passes.steps.block import Rfactor as Rfactor
from stack.passes.steps.bound import BoundLoops as BoundLoops
from stack.passes.steps.bound import Branch as Branch
from stack.passes.steps.compute_with import ComputeWith as ComputeWith
from stack.passes.steps.fission import Fission as Fission
from stack.passes.steps.fission import Sink as Sink
from stack.passes.steps.hold import Hold as Hold
from stack.passes.steps.launch import Evict as Evict
from stack.passes.steps.launch import Launch as Launch
from stack.passes.steps.launch import Pipeline as Pipeline
from stack.passes.steps.launch import Rasterize as Rasterize
from stack.passes.steps.launch import Threads as Threads
from stack.passes.steps.microkernel import Microkernel as Microkernel
from stack.passes.steps.pack import Compensate as Compensate
from stack.passes.steps.pack import Pack as Pack
from stack.passes.steps.partition import Partition as Partition
from stack.passes.steps.partition import Peel as Peel
from stack.passes.steps.partition import Specialize as Specialize
from stack.passes.steps.partition import Unroll as Unroll
from stack.passes.steps.reorder import Fuse as Fuse
from stack.passes.steps.reorder import Reorder as Reorder
from stack.passes.steps.reorder import Reverse as Reverse
from stack.passes.steps.rewrite import Rewrite as Rewrite
from stack.passes.steps.split import Split as Split
from stack.passes.steps.stage import Stage as Stage
from stack.passes.steps.stage_mem import StageMem as StageMem
from stack.passes.steps.step import IllegalStep as IllegalStep
from stack.passes.steps.step import LoweredKernel as LoweredKernel
from stack.passes.steps.step import Shown as Shown
from stack.passes.steps.step import Step as Step
from stack.passes.steps.step import parse_steps as parse_steps
from stack.passes.steps.step import run_steps as run_steps
from stack.passes.steps.tensorize import DotParts as DotParts
from stack.passes.steps.tensorize import Tensorize as Tensorize
from stack.passes.steps.vectorize import Vectorize as Vectorize
from stack.passes.steps.window import WindowLoads as WindowLoads
