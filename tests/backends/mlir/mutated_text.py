"""Runs IR texts, given as JSON on stdin, through the backend: a line with the outcome of each.

In a process of its own, since what is looked for is its end by a signal.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

import numpy as np

from stack.commands.run import runner
from stack.errors import StackError
from stack.ir import parse, verify
from stack.rewrite.inputs import random_inputs

MEMORY = 3 << 30
SECONDS = 5  # a mutated extent may be any number


def tell(text: str) -> str:
    """The outcome of one text."""
    try:
        func = parse(text)
        verify(func)
    except StackError:
        return "refused"
    try:
        inputs = random_inputs(func, 0)
        func.interpret(*inputs)
    except IndexError:
        return "outside"
    except (MemoryError, ValueError, OverflowError, TypeError, StackError) as error:
        return f"not interpreted: {type(error).__name__}: {error}"[:200]
    try:
        runner(func, "mlir")(inputs)
    except (StackError, MemoryError) as error:
        return f"not run: {error}"[:200]
    return "ran"


def main() -> None:
    np.seterr(all="ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    for number, text in json.load(sys.stdin):
        signal.alarm(SECONDS)
        print(json.dumps([number, tell(text)]), flush=True)


if __name__ == "__main__":
    main()
