"""Hosted operators: one declaration defines an operator for every framework and for the IR."""

from stack.hosted.declaration import Kernel, Op
from stack.hosted.registry import declared, enter, find, op, register

__all__ = ["Kernel", "Op", "declared", "enter", "find", "op", "register"]
