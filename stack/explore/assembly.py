"""Texts of a backend's own stages, split by kernel; assembly, annotated with the source lines of
its instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import stack.plugins as plugins
from stack.errors import ParseError, UsageError, unknown_name
from stack.explore.saved_run import SavedRun, is_run, load_run
from stack.ir.func import Func
from stack.run.backend import Backend, Executable
from stack.run.trace import IRFrontend

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


STAGES = ("sass", "ptx", "asm")  # by preference; of a run's stages, the first of these is used
NOWHERE = "no source line"
_LINE = re.compile(rf"\s*(?:;|//|\.loc\s.*//) (\S+:\d+|{NOWHERE})(?::0)?\s*")
_INSTRUCTION = re.compile(r"\s+(?:[0-9a-f]+:\s+\S|/\*[0-9a-f]{4,}\*/|[a-z@][\w.%@! ]*\s.*;)")


def assembly(run: SavedRun, name: str) -> tuple[str, str]:
    """Returns the name of a run's assembly stage, and the assembly of the kernel `name`.

    The stage is the first of STAGES that the run has; both results are "" if it has none. If the
    text of the stage has no sections for single kernels, the whole text is returned. Equal kernels
    share one text under the name of the first, so the text of the others is "".
    """
    stage = next((s for s in STAGES if s in run.stages), "")
    text = run.text(stage) if stage else ""
    parts = sections(text)
    return stage, parts.get(name, (0, ""))[1] if parts else text


def instructions(text: str) -> dict[str, list[str]]:
    """Maps each source line that an assembly text names to the instructions generated for it.

    Instructions without a source line are under the key NOWHERE.
    """
    found: dict[str, list[str]] = {}
    for line, instruction in _walk(text):
        found.setdefault(line, []).append(instruction)
    return found


def _walk(text: str) -> Iterator[tuple[str, str]]:
    here = NOWHERE
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            here = match[1]
        elif _INSTRUCTION.match(line):
            yield here, line.strip()


def beside_source(text: str, sources: Mapping[str, str]) -> str:
    """Returns the assembly with the user's code after each comment that names a source line.

    A comment stays as it is if `sources` lacks the file or the line.
    """
    return "\n".join(_with_text(line, sources) for line in text.splitlines())


def _with_text(line: str, sources: Mapping[str, str]) -> str:
    match = _LINE.fullmatch(line)
    file, _, number = match[1].rpartition(":") if match else ("", "", "")
    held = sources.get(file, "").splitlines()
    at = int(number) - 1 if number.isdigit() else -1
    return f"{line}  {held[at].strip()}" if 0 <= at < len(held) else line
