"""Patterns, the rewrite engine, passes and pipelines."""

from __future__ import annotations

from stack.rewrite.check import CheckError, random_inputs
from stack.rewrite.engine import CycleError, Scope, on, replace, rewrite
from stack.rewrite.log import Fuel, Log
from stack.rewrite.passes import Pass
from stack.rewrite.pattern import Match, Pattern, PatternOps, splat
from stack.rewrite.pipeline import Pipeline, Record, Result
from stack.rewrite.verdict import NOT_MINE, Fail, Ok, Why, Yes

__all__ = [
    "NOT_MINE",
    "CheckError",
    "CycleError",
    "Fail",
    "Fuel",
    "Log",
    "Match",
    "Ok",
    "Pass",
    "Pattern",
    "PatternOps",
    "Pipeline",
    "Record",
    "Result",
    "Scope",
    "Why",
    "Yes",
    "on",
    "random_inputs",
    "replace",
    "rewrite",
    "splat",
]
