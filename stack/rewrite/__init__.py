"""The rewrite engine, passes and pipelines."""

from __future__ import annotations

from stack.ir.traits import splat
from stack.rewrite.check import EXACT, FINITE, WIDER, CheckError, Inexact
from stack.rewrite.engine import CycleError, Scope, on, replace, rewrite
from stack.rewrite.inputs import random_inputs
from stack.rewrite.log import Fuel, Log
from stack.rewrite.passes import Pass
from stack.rewrite.pipeline import Pipeline, Record, Result
from stack.rewrite.verdict import NOT_MINE, Acceptance, Ok, Why

__all__ = [
    "EXACT",
    "FINITE",
    "NOT_MINE",
    "WIDER",
    "CheckError",
    "CycleError",
    "Fuel",
    "Inexact",
    "Log",
    "Ok",
    "Pass",
    "Pipeline",
    "Record",
    "Result",
    "Scope",
    "Why",
    "Acceptance",
    "on",
    "random_inputs",
    "replace",
    "rewrite",
    "splat",
]
