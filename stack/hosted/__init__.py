"""Hosted operators: one declaration defines an operator for every framework and for the IR."""

from stack.hosted.declaration import Kernel, Op
from stack.hosted.registry import add_file, declared, enter, find, op, register

__all__ = ["Kernel", "Op", "add_file", "declared", "enter", "find", "op", "register"]
