"""The kernels of a program, compiled in one module for each core, fewer where there is little.

To LLVM a module costs as much as a small kernel, whatever is in it, and what several kernels call
is compiled once for all that are in one. Modules are compiled side by side. In the cache each
kernel has an entry that says which module it is in, and by which name: a program finds those that
it shares with another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from stack.phases import phase
from stack.run.cache import Cache

from . import elf, jit, threads, workers

ENTRY = "kernel"
_FUNCTIONS = re.compile(r"^(?=llvm\.func)", re.MULTILINE)
# bytes of text that take LLVM several times as long as a module and a thread take by themselves
LEAST_TEXT = 1 << 15


def build(texts: Sequence[str], cache: Cache | None) -> dict[str, jit.Kernel]:
    """Function `kernel` of each text, by text. What is in a module that MLIR refuses is left out.

    Args:
        texts: modules of functions. A name is `kernel`, or begins so; any other stands for the same
            function in all of them.
    """
    found = dict(_stored(texts, cache))
    parts = _shared_out([text for text in texts if text not in found])
    others = [workers.submit(_compiled, part, cache) for part in parts[1:]]
    if parts:
        found.update(_compiled(parts[0], cache))
    for one in others:
        with phase("codegen"):
            found.update(one.result())
    return found


def _shared_out(texts: Sequence[str]) -> list[list[str]]:
    """The texts in parts that take about as long, the longest first."""
    count = min(threads.cores(), math.ceil(sum(map(len, texts)) / LEAST_TEXT))
    parts: list[list[str]] = [[] for _ in range(count)]
    for text in sorted(texts, key=len, reverse=True):
        min(parts, key=lambda part: sum(map(len, part))).append(text)
    return [part for part in parts if part]


def _compiled(texts: Sequence[str], cache: Cache | None) -> dict[str, jit.Kernel]:
    names = [f"{ENTRY}{number}" for number in range(len(texts))]
    module = module_of(texts, names)
    try:
        library = jit.build(module, names, cache)
    except jit.CompileError:
        return {}
    if cache is not None and elf.supported():
        entry = jit.key(module)
        for text, name in zip(texts, names, strict=True):
            cache.put(_place(text), f"{entry} {name}".encode())
    return {text: library[name] for text, name in zip(texts, names, strict=True)}


def module_of(texts: Sequence[str], names: Sequence[str]) -> str:
    """One module: function `kernel` of each text by another name, equal functions once."""
    functions: dict[str, None] = {}
    for text, name in zip(texts, names, strict=True):
        own = text.replace(f"@{ENTRY}", f"@{name}")
        functions.update(dict.fromkeys(_FUNCTIONS.split(own)))
    return "".join(functions)


def _place(text: str) -> str:
    """The entry that says where the kernel of a text is."""
    return jit.key(f"place of\n{text}")


def _stored(texts: Sequence[str], cache: Cache | None) -> Iterator[tuple[str, jit.Kernel]]:
    """Kernels that the cache has."""
    if cache is None:
        return
    modules: dict[str, dict[str, str]] = {}
    for text in texts:
        entry = cache.get(_place(text))
        if entry is not None:
            module, _, name = entry.decode().partition(" ")
            modules.setdefault(module, {})[name] = text
    for module, wanted in modules.items():
        library = jit.stored(module, list(wanted), cache)
        if library is not None:
            yield from ((text, library[name]) for name, text in wanted.items())
