"""Hosted operators: one declaration makes an operator of every framework and of the IR."""

from stack.hosted.declaration import Kernel, Op
from stack.hosted.registry import add_file, declared, enter, find, op, register

__all__ = ["Kernel", "Op", "add_file", "declared", "enter", "find", "op", "register"]
