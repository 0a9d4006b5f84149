"""Lists passes, stages, ops, backends, glossary and versions as rows for tables and JSON."""

from __future__ import annotations

import inspect
import os
import platform
from typing import Any

import stack.plugins as plugins
from stack.explore.glossary import entries
from stack.explore.op_table import op_rows
from stack.processors import usable_processors
from stack.rewrite.passes import Pass, option_fields, option_text
from stack.run.backend import Backend
from stack.run.compile import DEFAULT_BACKEND
from stack.run.record import versions
from stack.wings import WINGS, call_if_here, missing

Row = dict[str, Any]


def _load(group: str, name: str) -> tuple[Any, str]:
    """Loads the plugin `name` of an entry point group; returns the object and an error text.

    If loading fails, the object is None; an error in one plugin does not hide the others.
    """
    try:
        return plugins.load(group, name), ""
    except Exception as error:  # whatever a broken plugin raises
        return None, f"{type(error).__name__}: {error}"


def passes() -> list[Row]:
    """Lists every pass."""
    rows: list[Row] = []
    for name in plugins.names("stack.passes"):
        loaded, problem = _load("stack.passes", name)
        if loaded is None:
            rows.append({"name": name, "options": {}, "doc": f"cannot be loaded: {problem}"})
            continue
        cls: type[Pass] = loaded
        default = cls()
        options = {f.name: option_text(getattr(default, f.name)) for f in option_fields(cls)}
        needs = {"needs": list(cls.needs)} if cls.needs else {}
        doc = inspect.getdoc(cls) or ""
        rows.append({"name": name, "options": options, **needs, "doc": doc})
    return rows


def backends() -> list[Row]:
    """Lists every backend and peer, with what it needs if it cannot run."""
    rows: list[Row] = []
    for name in plugins.names("stack.backends"):
        loaded, problem = _load("stack.backends", name)
        if loaded is None:
            state = f"cannot be loaded: {problem}"
            rows.append({"name": name, "role": "-", "takes": "-", "state": state, "doc": ""})
            continue
        backend: Backend = loaded
        need = backend.missing()
        role = "peer" if backend.peer else "ours"
        rows.append(
            {
                "name": name,
                "role": role + (", default" if name == DEFAULT_BACKEND else ""),
                "takes": f"{backend.lowering.level} level",
                "native": backend.peer is not None and backend.peer.native is not None,
                "artifacts": list(backend.lowering.artifacts),
                "state": _state(backend, need),
                "doc": backend.doc,
            }
        )
    return rows


def _state(backend: Backend, need: str | None) -> str:
    if need is not None:
        return f"needs: {need}"
    limits = backend.machine.limits() if backend.machine.limits is not None else ""
    return f"ready; {limits}" if limits else "ready"


def stages() -> list[Row]:
    """Lists the stages of every backend, in order."""
    rows: list[Row] = []
    for name in plugins.names("stack.backends"):
        loaded, _ = _load("stack.backends", name)
        if loaded is None:
            continue
        backend: Backend = loaded
        rows.append(_stage(name, "captured", "the framework's own text"))
        rows.append(_stage(name, "imported", "the frontend"))
        rows.extend(_stage(name, stage, spec) for stage, spec in backend.lowering.stages)
        rows.extend(_stage(name, stage, "the backend") for stage in backend.lowering.artifacts)
    return rows


def _stage(backend: str, stage: str, pipeline: str) -> Row:
    return {"backend": backend, "stage": stage, "pipeline": pipeline}


def ops() -> list[Row]:
    """Lists the op table and the hosted operators."""
    return [*op_rows(), *hosted_ops()]


def hosted_ops() -> list[Row]:
    """Lists the hosted operators; none without their wing."""
    return call_if_here("operator-rows") or []


def glossary() -> list[Row]:
    """Lists the glossary; a term that is both a pass and an attribute has a row for each."""
    return [{"name": e.term, "kind": e.kind, "line": e.line, "source": e.source} for e in entries()]


def env() -> list[Row]:
    """Lists versions, machine, threads and plugins."""
    rows: list[Row] = [{"name": k, "value": v} for k, v in versions().items()]
    rows.append({"name": "machine", "value": machine()})
    rows.append({"name": "cores", "value": usable_processors()})
    for name in ("OMP_NUM_THREADS", "STACK_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        if name in os.environ:
            rows.append({"name": name, "value": os.environ[name]})
    for row in backends():
        if "; " in row["state"] and row["state"].startswith("ready"):
            rows.append({"name": f"backend {row['name']}", "value": row["state"]})
    for group in plugins.GROUPS:
        rows.append({"name": group, "value": ", ".join(plugins.names(group)) or "none"})
    for name in WINGS:
        rows.append({"name": f"wing {name}", "value": missing(name) or "ready"})
    rows.append(
        {"name": "hosted operators", "value": ", ".join(r["name"] for r in hosted_ops()) or "none"}
    )
    return rows


def machine() -> str:
    """Returns the processor's name and architecture."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    name = line.partition(":")[2].strip()
                    break
    except OSError:
        pass
    return f"{name} ({platform.machine()}, {platform.system()})"
