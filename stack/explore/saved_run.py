"""Load a run from its folder: stages as text or as functions, kernels, tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from stack.errors import ParseError, UsageError, unknown_name
from stack.ir.files import CONSTANTS, load_constants
from stack.ir.func import Func
from stack.ir.parser import parse
from stack.ir.untrusted_files import inside, read_text
from stack.run.decisions import FILE as DECISIONS
from stack.run.decisions import SCHEMA as DECISIONS_SCHEMA
from stack.run.decisions import Decisions
from stack.run.decisions import read as read_decisions
from stack.run.record import SCHEMA
from stack.target import Target, load


@dataclass(frozen=True)
class SavedRun:
    """A run written by `stackc dump -o DIR` or `Run.save`."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def stages(self) -> list[str]:
        """Stage names in order."""
        return [str(s["name"]) for s in self.manifest["stages"]]

    def stage(self, name: str) -> dict[str, Any]:
        """Returns the manifest entry of a stage; raises UsageError with the known names."""
        for entry in self.manifest["stages"]:
            if entry["name"] == name:
                return entry
        raise unknown_name(f"{self.folder} has no stage", name, self.stages)

    def text(self, name: str) -> str:
        """Returns the text of a stage."""
        return self._read(self.stage(name)["file"])

    def _read(self, file: str) -> str:
        try:
            return read_text(inside(self.folder, file))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the run {self.folder} is incomplete: {error}") from error

    def is_ir(self, name: str) -> bool:
        """True if a stage is in our IR, not another compiler's text."""
        return str(self.stage(name)["file"]).endswith(".stack")

    def func(self, name: str) -> Func:
        """Parses a stage of our IR."""
        if not self.is_ir(name):
            raise UsageError(f"stage {name!r} is {self.stage(name)['file']}, not IR text")
        return parse_file_text(self.text(name), self.constants, self.folder / name)

    @cached_property
    def constants(self) -> Mapping[str, np.ndarray]:
        """The large constants of all stages, by digest."""
        try:
            inside(self.folder, CONSTANTS)
        except OSError as error:
            raise UsageError(f"the run {self.folder} is incomplete: {error}") from error
        return load_constants(self.folder)

    @cached_property
    def sources(self) -> dict[str, str]:
        """The user's source files that the run saved, by name."""
        return {name: self._read(f"sources/{name}") for name in self.manifest.get("sources", ())}

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The kernel entries of the manifest."""
        return list(self.manifest["kernels"])

    @property
    def profile(self) -> dict[str, Any]:
        """The measurements of a profiled run, see `stack.measure.profile`; {} if there are none."""
        found: dict[str, Any] = self.manifest.get("profile", {})
        return found

    def decisions(self, stage: str) -> list[Decisions]:
        """Returns the decisions of each pass of a stage."""
        try:
            return read_decisions(self._decisions.get(stage, ()))
        except (AttributeError, KeyError, TypeError) as error:
            raise UsageError(f"{self.folder / DECISIONS} is damaged: {error!r}") from error

    @cached_property
    def _decisions(self) -> Mapping[str, Any]:
        try:
            held = json.loads(self._read(DECISIONS))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.folder / DECISIONS} cannot be read: {error}") from error
        if not isinstance(held, dict) or held.get("schema") != DECISIONS_SCHEMA:  # pyright: ignore[reportUnknownMemberType]
            raise UsageError(f"{self.folder / DECISIONS} is not {DECISIONS_SCHEMA!r}")
        return cast("dict[str, Any]", held)["stages"]

    def note(self, title: str) -> str:
        """Returns a note by its title, such as "guards", or "" if there is none."""
        path = f"notes/{title}.txt"
        return self._read(path) if (self.folder / path).is_file() else ""

    def kernel_text(self, name: str) -> str:
        """Returns the code of a kernel; raises UsageError with the known names."""
        for entry in self.kernels:
            if entry["name"] == name:
                if not entry["file"]:
                    raise UsageError(
                        f"kernel {name!r} is a {entry['kind']} call and has no generated code"
                    )
                return self._read(entry["file"])
        raise unknown_name(f"{self.folder} has no kernel", name, [k["name"] for k in self.kernels])


def machine_of(run: SavedRun) -> Target | None:
    """Returns the target of a run; None if the run names none, or if its target file is gone."""
    name = str(run.manifest.get("machine") or "")
    try:
        return load(name) if name else None
    except UsageError:
        return None


def is_run(folder: Path) -> bool:
    """True if a folder is a saved run."""
    return (folder / "manifest.json").is_file()


def load_run(folder: str | Path) -> SavedRun:
    """Reads a run's folder; raises UsageError if it is not one."""
    root = Path(folder)
    path = root / "manifest.json"
    if not path.is_file():
        runs = ", ".join(str(found.parent) for found in sorted(root.glob("*/manifest.json")))
        why = "it has no manifest.json" + (f"; these are: {runs}" if runs else "")
        raise UsageError(f"{root} is not a saved run: {why}")
    try:
        manifest = json.loads(read_text(inside(root, path.name)))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    schema = cast("dict[str, Any]", manifest).get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise UsageError(_of_another_version(root, schema, manifest))
    found = cast("dict[str, Any]", manifest)
    for what in ("stages", "kernels"):
        if not _are_entries(found.get(what)):
            raise UsageError(f"{path} is damaged: {what} is not a list of names and files")
    return SavedRun(root, found)


def _of_another_version(root: Path, schema: object, manifest: Any) -> str:
    """Formats an error for a run of another version, with the ways to still use it."""
    held = cast("dict[str, Any]", manifest) if isinstance(manifest, dict) else {}
    versions = held.get("versions")
    known = cast("dict[str, Any]", versions) if isinstance(versions, dict) else {}
    wrote = f"stack-compiler {known.get('stack-compiler', 'of an unknown version')}"
    stages = sorted(file.name for file in root.glob("*.stack"))
    still = f"{root / stages[0]}" if stages else "its files"
    return (
        f"{root} was written by {wrote}, as {schema!r}; this version reads {SCHEMA!r}. Its stages"
        f" are text: `stackc show {still}` and `stackc run` may read them, and `stackc dump"
        " TARGET -o DIR` writes the run again"
    )


def _are_entries(held: Any) -> bool:
    if not isinstance(held, list):
        return False
    entries = cast("list[Any]", held)
    return all(
        isinstance(e, dict) and isinstance(e.get("name"), str) and isinstance(e.get("file"), str)  # pyright: ignore[reportUnknownMemberType]
        for e in entries
    )


def parse_file_text(text: str, constants: Mapping[str, np.ndarray], path: Path) -> Func:
    """Parses IR text; names the file in an error."""
    try:
        return parse(text, constants)
    except ParseError as error:
        error.add_note(f"in {path}")
        raise
