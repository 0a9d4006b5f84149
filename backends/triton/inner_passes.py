"""The IR after each pass inside of Triton, as Triton prints it on request (MLIR_ENABLE_DUMP).

Triton prints to the error stream of its process, so kernels are compiled in a process of their own:
`python -m stack.backends.triton.inner_passes FILE TARGET`, with the lowered function in FILE.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from stack.errors import StackError
from stack.ir.func import Func
from stack.ir.node import walk
from stack.ir.parser import parse
from stack.ir.traits import is_kernel
from stack.target import Gpu, Target, load

_DUMP = re.compile(r"^// -----// IR Dump Before \S+ \((?P<name>[^)]*)\).*$", re.M)
_INNER = r"[^()]*(?:\([^()]*\)[^()]*)*"  # parentheses in it are closed, one level deep
_LOCATION = re.compile(rf" loc\([^()]*(?:\({_INNER}\)[^()]*)*\)|^#loc.*\n", re.M)


def inner_passes(
    kernels: Sequence[str], func: Func, target: Target | None
) -> Iterator[tuple[str, str]]:
    """Yields the passes of Triton that change a kernel, each with the module after it.

    The kernels of `func`, the lowered function of a run, are compiled again for `target`.
    """
    assert isinstance(target, Gpu)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lowered.stack"
        path.write_text(str(func), encoding="utf-8")
        command = [sys.executable, "-m", __name__, str(path), target.name]
        env = {
            **os.environ,
            "MLIR_ENABLE_DUMP": "1",
            "TRITON_ALWAYS_COMPILE": "1",
            "TRITON_CACHE_DIR": folder,
        }
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise StackError(f"Triton does not print its passes: {done.stderr.strip()[-300:]}")
    yield from changed_modules(done.stderr)


def changed_modules(dump: str) -> Iterator[tuple[str, str]]:
    """Yields the passes that change the module, with the module after them, from Triton's dump.

    Triton prints a module before each pass, so the module after a pass is the one before the next.
    """
    found = list(_DUMP.finditer(dump))
    ends = [m.start() for m in found[1:]]
    modules = [
        _LOCATION.sub("", dump[m.end() : end]).strip()
        for m, end in zip(found, [*ends, len(dump)], strict=True)
    ]
    for match, before, after in zip(found, modules, modules[1:], strict=False):
        if before != after:
            yield match["name"], after


def main() -> None:
    """Compiles every kernel of the function in a file, for a target."""
    from .compiler import Compiler

    func, target = parse(Path(sys.argv[1]).read_text(encoding="utf-8")), load(sys.argv[2])
    assert isinstance(target, Gpu)
    program = Compiler(func, target.name)
    for _, node in walk(func.body):
        if is_kernel(node):
            program.binary(program.source(node))


if __name__ == "__main__":
    main()
