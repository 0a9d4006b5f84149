"""Groups what repeats for each layer of a model: rows whose module paths differ in a number."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence

from stack.run.backend import Kernel

_LAYER = re.compile(r"(?<![^._])\d+(?![^.])")  # `0` in `layers.0.attn` and in `layers_0.attn`
_SUFFIX = re.compile(r"(?<=\w)(?:_\d+)+(?!\w)")
ANY = "*"


def pattern(path: str) -> str:
    """Returns a module path without its layer numbers: `layers.*.attn.wq`."""
    return _LAYER.sub(ANY, path)


def base_name(text: str) -> str:
    """Returns a text with value names as they are before they are made unique: `dot` of `dot_3`."""
    return _SUFFIX.sub("", text)


def alike(keys: Iterable[Hashable]) -> list[list[int]]:
    """Groups the positions of equal elements of `keys`, in the order of first occurrence."""
    found: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    return list(found.values())


def folded(paths: Iterable[str]) -> str:
    """Merges module paths that differ in layer numbers: `layers.0-11.attn.wq`.

    Leaves out a module that contains another one of `paths`.
    """
    held: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        held.setdefault(pattern(path), []).append(path)
    deepest = [p for p in held if not any(other.startswith(f"{p}.") for other in held)]
    return ", ".join(_joined(p, held[p]) for p in deepest)


def _joined(shape: str, paths: Sequence[str]) -> str:
    """Replaces each `*` of the module pattern `shape` by the layer numbers found in `paths`."""
    numbers = zip(*(map(int, _LAYER.findall(path)) for path in paths), strict=True)
    ranges = map(_ranges, numbers)
    return "".join(next(ranges) if part == ANY else part for part in re.split(r"(\*)", shape))


def _ranges(numbers: Iterable[int]) -> str:
    """Formats numbers as `0-3,7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def equal_kernels(kernels: Sequence[Kernel]) -> list[list[int]]:
    """Groups the positions of kernels that repeat in equal layers of a model.

    They have the same code, work and source lines, in modules that differ in layer numbers only.
    Backends give kernels with equal text one name.
    """
    return alike(
        (k.name, k.kind, k.ops, k.flops, k.bytes, k.source, frozenset(map(pattern, k.modules)),
         k.warning)
        for k in kernels
    )  # fmt: skip
