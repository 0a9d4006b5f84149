"""CUDA's binary tools, from the triton wheel or from PATH, and machine code as text."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

LONGEST = 60  # seconds
_LINE = re.compile(r'\s*//## File "(.*?)", line (\d+)')

# maps a file name that a compiler was given, and a line in it, to the source line ("" if none)
Origin = Callable[[str, int], str]


def find_tool(name: str) -> str | None:
    """The path of a CUDA tool: the copy inside triton, or one on PATH; None if not found."""
    spec = importlib.util.find_spec("triton")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "backends" / "nvidia" / "bin" / name
        if path.is_file():
            return str(path)
    return shutil.which(name)


def run_tool(name: str, code: bytes, *options: str) -> str:
    """A tool's output for code, errors included; "" if the tool was not found."""
    path = find_tool(name)
    if path is None:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".ptx" if name == "ptxas" else ".cubin") as file:
        file.write(code)
        file.flush()
        command = [path, *options, file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    return done.stdout + done.stderr


def disassemble(cubin: bytes, origin: Origin) -> str:
    """SASS annotated with source lines, or a note on the tool that is missing."""
    text = run_tool("nvdisasm", cubin, "-c", "-gi")
    if "/*0000*/" not in text:
        return f"// no disassembly: {text.strip() or 'nvdisasm was not found'}\n"
    return "\n".join(_listing(text, origin)) + "\n"


def _listing(text: str, origin: Origin) -> Iterator[str]:
    """The lines of nvdisasm. Inlined code is attributed to the line that calls it."""
    found = shown = ""
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            found = origin(match[1], int(match[2])) or "no source line"
        elif line.strip() and not line.startswith("nvdisasm warning"):
            if found != shown:
                shown = found
                yield f"// {found}"
            yield line
