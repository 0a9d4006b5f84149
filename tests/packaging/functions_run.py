"""Functions of ours that a fresh process runs for a small program: what a reader meets who steps.

`python tests/packaging/functions_run.py trace` lists them for the trace of `relu(x + y)`; `relu`,
`softmax` and `llama` compile these programs for this CPU after they were traced, with an empty
cache; `call` is the first call of the compiled `relu(x + y)`.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from core_alone import FOLDERS, ROOT


def functions_of(step: Callable[[], object]) -> dict[str, Counter[str]]:
    """The functions of ours that a step runs in any thread: file, qualified name, number of calls.

    Not counted are functions that run while a module is imported, lambdas and comprehensions.
    """
    found: Counter[CodeType] = Counter()
    paths: dict[str, str] = {}  # by file name of code, the path of a file of ours, or ""

    def seen(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or paths.get(code.co_filename) == "":
            return
        if code.co_filename not in paths:
            paths[code.co_filename] = _path_of(code)
        is_named = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if paths[code.co_filename] and is_named and (code in found or not _is_imported(frame)):
            found[code] += 1

    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        step()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for code, count in found.items():
        files[paths[code.co_filename]][code.co_qualname] += count
    return files


def _path_of(code: CodeType) -> str:
    """The path from the root to a function's file; "" if it is no file of the compiler."""
    path = Path(code.co_filename).resolve()
    if code.co_filename.startswith("<") or not path.is_relative_to(ROOT):
        return ""
    own = path.relative_to(ROOT)
    return str(own) if own.parts[0] in FOLDERS else ""


def _is_imported(frame: FrameType) -> bool:
    """True if a frame belongs to the import of a module."""
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_name != "<module>":
        outer = outer.f_back
    return outer is not None and outer.f_globals.get("__name__") != "__main__"


def _step(name: str) -> Callable[[], object]:
    """Returns the step to count for a program: its trace, its compilation after that, or the first
    call of the compiled program.
    """
    import torch

    import stack
    from stack.demos import transformer

    x = torch.randn(64, 256)
    programs: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
        "relu": lambda: (lambda x, y: torch.relu(x + y), (x, x.clone())),
        "softmax": lambda: (lambda x: torch.softmax(x, -1), (x,)),
        "llama": transformer.llama_block,
    }
    program, args = programs[name if name in programs else "relu"]()
    if name == "trace":
        return lambda: stack.trace(program, *args, frontend="torch")
    func = stack.trace(program, *args, frontend="torch")
    if name == "call":
        compiled = stack.compile(func)
        return lambda: compiled(*args)
    return lambda: stack.compile(func)


def main(name: str) -> None:
    """Prints the functions of one program by file, those files last in which it runs most."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        files = functions_of(_step(name))
    for file, functions in sorted(files.items(), key=lambda item: (len(item[1]), item[0])):
        print(f"{len(functions):4} {file}")
        for function, count in sorted(functions.items()):
            print(f"       {function} {count}")
    print(f"{name}: {sum(map(len, files.values()))} functions in {len(files)} files")


if __name__ == "__main__":
    main(sys.argv[1])
