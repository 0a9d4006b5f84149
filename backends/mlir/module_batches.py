"""Compiles the kernels of a program in one module per core, or fewer if there is little text.

A module costs LLVM as much as a small kernel, whatever it contains, and functions that several of
its kernels call are compiled once. Modules are compiled concurrently. Each kernel has a cache entry
that names its module, and its name in it, so that a program finds kernels it shares with another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from stack.phases import phase
from stack.run.cache import Cache

from . import elf, jit, pool, threads, workers

ENTRY = "kernel"
_FUNCTIONS = re.compile(r"^(?=llvm\.func)", re.MULTILINE)
# bytes of text that take LLVM several times as long as the overhead of a module and a thread
LEAST_TEXT = 1 << 15


def build(texts: Sequence[str], cache: Cache | None) -> dict[str, jit.NativeKernel]:
    """Returns the function `kernel` of each text, by text, except in modules that MLIR refuses.

    Args:
        texts: modules of functions. Names other than `kernel`, or beginning with it, must denote
            equal functions in all of them.
    """
    found = dict(_stored(texts, cache))
    left = [text for text in texts if text not in found]
    if any(map(threads.are_asked_for, left)):
        pool.ahead(cache)
    parts = _shared_out(left)
    others = [workers.submit(_compiled, part, cache) for part in parts[1:]]
    if parts:
        found.update(_compiled(parts[0], cache))
    for one in others:
        with phase("codegen"):
            found.update(one.result())
    return found


def _shared_out(texts: Sequence[str]) -> list[list[str]]:
    """Distributes the texts to parts of about equal compile time, the longest first."""
    count = min(threads.cores(), math.ceil(sum(map(len, texts)) / LEAST_TEXT))
    parts: list[list[str]] = [[] for _ in range(count)]
    for text in sorted(texts, key=len, reverse=True):
        min(parts, key=lambda part: sum(map(len, part))).append(text)
    return [part for part in parts if part]


def _compiled(texts: Sequence[str], cache: Cache | None) -> dict[str, jit.NativeKernel]:
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
    """Merges texts to one module, with a new name for each `kernel`, and equal functions once."""
    functions: dict[str, None] = {}
    for text, name in zip(texts, names, strict=True):
        own = text.replace(f"@{ENTRY}", f"@{name}")
        functions.update(dict.fromkeys(_FUNCTIONS.split(own)))
    return "".join(functions)


def _place(text: str) -> str:
    """The key of the cache entry that names the module of a kernel."""
    return jit.key(f"place of\n{text}")


def _stored(texts: Sequence[str], cache: Cache | None) -> Iterator[tuple[str, jit.NativeKernel]]:
    """Loads the kernels that the cache has."""
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
