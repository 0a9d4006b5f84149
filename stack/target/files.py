"""Target files: one TOML file for each machine, with the source of every number.

name = "sm_90" kind = "gpu" ... [numbers] launch = { value = 2e-6, source = "calibrated" }
[tiles.half] "m=128 n=128 k=64 warps=4 stages=3" = 0.92
[tuning.rows] tile = 2048

A file lists only those tuned numbers that differ from the ones of the library.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from stack.errors import UsageError, unknown_name
from stack.target.fields import Tuning
from stack.target.record import (
    KINDS,
    PRODUCTS,
    Cpu,
    Gpu,
    Target,
    TileRate,
    kind_of,
)

FOLDER = Path(__file__).parent / "data"
WORDS = ("name", "title", "arch")
KEYS = (*WORDS, "kind", "features", "numbers", "tiles", "tuning")
MOST_RATE = 2.0  # of a tile: clocks rise if the load is low
REFERENCE = {Gpu: "sm_90", Cpu: "avx512"}  # the default, for example for a bare pipeline
_TILE = re.compile(r"m=\d+ n=\d+ k=\d+ warps=\d+ stages=\d+( persistent)?")
_SM = re.compile(r"sm_(\d{2,3})[af]?")
Kind = TypeVar("Kind", Gpu, Cpu)


def names() -> list[str]:
    """The targets that come with this library."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@functools.cache
def _built_in(name: str) -> Target:
    return read(FOLDER / f"{name}.toml")


def load(spec: str) -> Target:
    """A target by its name, or from a file.

    A GPU without a file, such as sm_86, gets the numbers of the newest older one, and its title
    says so.

    Raises:
        UsageError: there is no such target, or its file has a missing or absurd number.
    """
    if spec in names():
        return _built_in(spec)
    if Path(spec).is_file():
        return read(Path(spec))
    match = _SM.fullmatch(spec)
    if match is None:
        raise unknown_name("no target, and no file,", spec, names())
    known = sorted(int(n.removeprefix("sm_")) for n in names() if _SM.fullmatch(n))
    before = [k for k in known if k <= int(match[1])] or known[:1]
    lent = _built_in(f"sm_{before[-1]}")
    title = f"the numbers of {lent.name}, since it has no file of its own: {lent.title}"
    return replace(lent, name=spec, arch=spec, title=title)


def as_gpu(target: Target | None) -> Gpu:
    """Returns the target as a GPU; the reference GPU if `target` is None. Raises UsageError if it
    is a CPU.
    """
    return target if isinstance(target, Gpu) else _reference(target, Gpu)


def as_cpu(target: Target | None) -> Cpu:
    """Returns the target as a CPU; the reference CPU if `target` is None. Raises UsageError if it
    is a GPU.
    """
    return target if isinstance(target, Cpu) else _reference(target, Cpu)


def _reference(target: Target | None, cls: type[Kind]) -> Kind:
    """Returns the reference of a kind of machines. Raises UsageError for a target of the other."""
    found = load(REFERENCE[cls]) if target is None else target
    if isinstance(found, cls):
        return found
    known = ", ".join(n for n in names() if isinstance(load(n), cls))
    raise UsageError(
        f"target {found.name!r} is a {kind_of(found).upper()}, and this is for"
        f" {cls.__name__.upper()}s: {known}, or a file of one"
    )


# ---- the numbers of a kind of machines


def numbers_of(cls: type[Any]) -> dict[str, Field[Any]]:
    """Returns the fields of a `Target` or `Tuning` class that were declared by `number` or `tuned`,
    by name.
    """
    return {f.name: f for f in fields(cls) if "unit" in f.metadata}


def groups_of(cls: type[Any]) -> dict[str, Tuning]:
    """Returns the default `Tuning` groups of a target class, by the name of their field."""
    return {f.name: f.default for f in fields(cls) if isinstance(f.default, Tuning)}


# ---- reading


def read(path: Path) -> Target:
    """Reads a target file. Raises UsageError if it cannot be read, is no TOML, or has a wrong key,
    which the error names.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"target file {path}: {error}") from error
    return parse(table, f"target file {path}:")


def parse(table: Mapping[str, Any], where: str) -> Target:
    """The target of a parsed TOML table. `where` begins every message of a UsageError."""
    _check_keys(table, KEYS, f"{where} no key is called")
    for key in (*WORDS, "kind", "numbers"):
        if key not in table:
            raise UsageError(f"{where} {key!r} is missing")
        if key in WORDS and not isinstance(table[key], str):
            raise UsageError(f"{where} {key} is a text, not {table[key]!r}")
    kind = table["kind"]
    features: Any = table.get("features", [])
    given: Any = table["numbers"]
    if kind not in [*KINDS]:
        raise UsageError(f"{where} kind is one of {', '.join(KINDS)}, not {kind!r}")
    if not isinstance(features, list) or any(not isinstance(f, str) for f in cast("Any", features)):
        raise UsageError(f"{where} features is a list of texts, not {features!r}")
    if not isinstance(given, dict):
        raise UsageError(f"{where} numbers is a table, not {given!r}")
    known, numbers = numbers_of(KINDS[kind]), cast("dict[str, Any]", given)
    _check_keys(numbers, known, f"{where} a {kind} has no number called")
    values: dict[str, Any] = {key: table[key] for key in WORDS}
    sources: dict[str, str] = {}
    for key, spec in known.items():
        if key not in numbers:
            raise UsageError(f"{where} number {key!r} is missing ({_meaning(spec.metadata)})")
        values[key], sources[key] = _entry(key, numbers[key], spec, where)
    if KINDS[kind] is Gpu:
        values["tiles"] = _tiles(table.get("tiles"), where)
    elif "tiles" in table:
        raise UsageError(f"{where} tiles are of a gpu")
    if "tuning" in table:
        groups, reasons = _tuning(table["tuning"], kind, where)
        values, sources = values | groups, sources | reasons
    return KINDS[kind](**values, features=tuple(cast("Any", features)), sources=sources)


def _tiles(given: Any, where: str) -> tuple[TileRate, ...]:
    """Reads table `tiles` of a target file: the matmul tiles of a GPU and their measured rates.
    Raises UsageError for a missing or malformed entry.
    """
    if given is None:
        raise UsageError(f"{where} 'tiles' is missing")
    if not isinstance(given, dict):
        raise UsageError(f"{where} tiles is a table, not {given!r}")
    tables = cast("dict[str, Any]", given)
    _check_keys(tables, PRODUCTS, f"{where} no product of tiles is called")
    found: list[TileRate] = []
    for product, meaning in PRODUCTS.items():
        entries = cast("dict[str, Any]", tables.get(product) or {})
        if not entries:
            raise UsageError(f"{where} tiles.{product} is missing (of products {meaning})")
        for schedule, rate in entries.items():
            at = f"{where} tiles.{product} {schedule!r}"
            if not _TILE.fullmatch(schedule):
                raise UsageError(f"{at} is not as 'm=128 n=128 k=64 warps=4 stages=3'")
            if isinstance(rate, bool) or not isinstance(rate, int | float):
                raise UsageError(f"{at} is a number, not {rate!r}")
            if not 0 < rate <= MOST_RATE:
                raise UsageError(f"{at} = {rate} is not between 0 and {MOST_RATE:g}")
            found.append(TileRate(product, schedule, float(rate)))
    return tuple(found)


def _tuning(given: Any, kind: str, where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads table `tuning` of a target file. Returns the groups in which it changes numbers, and
    the source of each changed number by `group.number`. Raises UsageError for unknown names.
    """
    if not isinstance(given, dict):
        raise UsageError(f"{where} tuning is a table, not {given!r}")
    known = groups_of(KINDS[kind])
    tables = cast("dict[str, Any]", given)
    _check_keys(tables, known, f"{where} a {kind} has no group of tuned numbers called")
    groups: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, entries in tables.items():
        if not isinstance(entries, dict):
            raise UsageError(f"{where} tuning.{name} is a table, not {entries!r}")
        specs = numbers_of(type(known[name]))
        numbers = cast("dict[str, Any]", entries)
        _check_keys(numbers, specs, f"{where} tuning.{name} has no number called")
        values: dict[str, float] = {}
        for key, entry in numbers.items():
            path = f"{name}.{key}"
            values[key], sources[path] = _entry(f"tuning.{path}", entry, specs[key], where)
        groups[name] = replace(cast("Any", known[name]), **values)
    return groups, sources


def _check_keys(table: Mapping[str, Any], known: Collection[str], what: str) -> None:
    for key in table:
        if key not in known:
            raise unknown_name(what, key, known)


def _entry(key: str, entry: Any, spec: Any, where: str) -> tuple[float, str]:
    """Reads one number of a target file and the source that the file gives for it, or "". Raises
    UsageError if the number has the wrong type or is out of range.
    """
    source = ""
    if isinstance(entry, dict):
        table = cast("dict[str, Any]", entry)
        _check_keys(table, ("value", "source"), f"{where} number {key!r} has no")
        if "value" not in table:
            raise UsageError(f"{where} number {key!r}: 'value' is missing")
        entry, source = table["value"], table.get("source", "")
    whole = spec.type == "int"
    wanted = int if whole else int | float
    if isinstance(entry, bool) or not isinstance(entry, wanted):
        what = "a whole number" if whole else "a number"
        raise UsageError(f"{where} {key} is {what} ({_meaning(spec.metadata)}), not {entry!r}")
    low, high, unit = (spec.metadata[k] for k in ("low", "high", "unit"))
    if not low <= entry <= high:
        raise UsageError(
            f"{where} {key} = {entry} is not between {low:g} and {high:g} {unit}".rstrip()
            + f" ({spec.metadata['doc']})"
        )
    return (entry if whole else float(entry)), str(source)


def _meaning(metadata: Mapping[str, Any]) -> str:
    unit = f", in {metadata['unit']}" if metadata["unit"] else ""
    return f"{metadata['doc']}{unit}"


# ---- writing


def text_of(target: Target) -> str:
    """The text of a target file; `parse` restores an equal target from it."""
    lines = [f"{key} = {_quoted(getattr(target, key))}" for key in WORDS]
    lines.insert(1, f"kind = {_quoted(kind_of(target))}")
    lines.append(f"features = [{', '.join(map(_quoted, target.features))}]")
    lines += ["", "[numbers]"]
    for key, spec in numbers_of(type(target)).items():
        value, source = getattr(target, key), target.sources.get(key, "")
        lines.append(f"# {_meaning(spec.metadata)}")
        lines.append(f"{key} = {{ value = {value!r}, source = {_quoted(source)} }}")
    if isinstance(target, Gpu):
        lines += _tile_lines(target)
    return "\n".join([*lines, *_tuning_lines(target)]) + "\n"


def _tuning_lines(target: Target) -> list[str]:
    """The tables of the tuned numbers that differ from those of the library."""
    lines: list[str] = []
    for name, usual in groups_of(type(target)).items():
        numbers = {k: getattr(getattr(target, name), k) for k in numbers_of(type(usual))}
        changed = {k: v for k, v in numbers.items() if v != getattr(usual, k)}
        lines += ["", f"[tuning.{name}]"] if changed else []
        for key, value in changed.items():
            source = _quoted(target.sources.get(f"{name}.{key}", ""))
            lines.append(f"{key} = {{ value = {value!r}, source = {source} }}")
    return lines


def _tile_lines(gpu: Gpu) -> list[str]:
    """The tables of tiles, one for each kind of matmul."""
    lines: list[str] = []
    for product, meaning in PRODUCTS.items():
        held = [f"{_quoted(t.schedule)} = {t.rate!r}" for t in gpu.tiles if t.product == product]
        lines += ["", f"# share of bf16_rate: products {meaning}", f"[tiles.{product}]", *held]
    return lines


def save(target: Target, path: Path) -> None:
    """Writes a target file."""
    path.write_text(text_of(target), encoding="utf-8")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
