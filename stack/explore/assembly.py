"""Assembly of a kernel, annotated with the source lines of its instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from stack.explore.kernel_text import sections
from stack.explore.saved_run import SavedRun

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
