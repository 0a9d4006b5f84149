"""Text of a backend's own stages: split it by kernel, and compile an edited text."""

from __future__ import annotations

import re
from pathlib import Path

import stack.plugins as plugins
from stack.errors import ParseError, UsageError, unknown_name
from stack.explore.saved_run import SavedRun, is_run, load_run
from stack.ir.func import Func
from stack.run.backend import Backend, Executable
from stack.run.ir_frontend import IRFrontend

_HEAD = re.compile(r"(?://|#|;) ---- (.*)")


def sections(text: str) -> dict[str, tuple[int, str]]:
    """Splits the text of a stage by kernel.

    Maps the name of each kernel to its own text and to the number of lines before it in the stage.
    """
    lines = text.splitlines()
    heads = [(i, m[1]) for i, line in enumerate(lines) if (m := _HEAD.fullmatch(line))]
    ends = [*(i for i, _ in heads[1:]), len(lines)]
    return {
        name: (start + 1, "\n".join(lines[start + 1 : end]) + "\n")
        for (start, name), end in zip(heads, ends, strict=True)
    }


def run_of(file: str, against: str | None) -> SavedRun:
    """Returns the run of a file with kernels: that of `--against RUN:STAGE`, or the file's folder.

    Raises UsageError if `against` is not given and the folder is not a run.
    """
    folder = Path(against.rpartition(":")[0] if against else file)
    folder = folder if against else folder.parent
    if not is_run(folder):
        raise UsageError(
            f"{file} is in no run's folder: add --against RUN:STAGE to name the run of its kernels"
        )
    return load_run(folder)


def resume(run: SavedRun, file: str, stage: str, name: str) -> tuple[Func, Executable]:
    """Compiles the last IR stage of a run with the kernel text of a file.

    Raises:
        UsageError: the backend or stage cannot be resumed, or the run has no such kernel.
        ParseError: with the line and column in the file.
    """
    backend: Backend = plugins.load("stack.backends", name)
    way = backend.lowering.resume
    if way is None or stage not in way.stages:
        taken = ", ".join(way.stages) if way else "none"
        raise UsageError(
            f"{name} cannot resume from kernel text at {stage!r}; it can from: {taken}"
        )
    text = Path(file).read_text(encoding="utf-8")
    found = sections(text)
    known = [str(k["name"]) for k in run.kernels if k["kind"] == "generated"]
    for kernel in found:
        if kernel not in known:
            raise unknown_name(f"{file}: {run.folder} has no kernel", kernel, known)
    func = run.func([s for s in run.stages if run.is_ir(s)][-1])
    # empty lines keep the line numbers of the file in error messages
    texts = {kernel: "\n" * before + held for kernel, (before, held) in found.items()}
    try:
        made = way.compile(func, texts, {"call_opaque": IRFrontend().call_opaque})
    except ParseError as error:
        error.add_note(f"in {file}")
        raise
    return func, made
