"""Lower a program on a mesh; list its collectives; draw the mesh and the shards of values."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from stack.errors import unknown_name
from stack.explore.layers import alike, base_name, folded, pattern
from stack.explore.lowering import Settings, lower_to
from stack.explore.saved_run import SavedRun
from stack.explore.table import table
from stack.explore.target import CommandTarget
from stack.explore.terminal import view
from stack.ir.func import Func
from stack.ir.node import Node, walk
from stack.ir.types import TensorType
from stack.mesh.meshes import Mesh, size_of
from stack.mesh.ops import traffic
from stack.mesh.sharding import Sharding
from stack.run.backend import module_paths, source_lines
from stack.run.compile import walk_stages
from stack.run.record import Run
from stack.sim import machine, simulate

MACHINE = "h100"  # the default of the passes
STAGES = ("annotated", "propagated", "resharded", "partitioned")


def shard_target(
    target: CommandTarget, settings: Settings, mesh: str, shard: tuple[str, ...]
) -> Run:
    """Returns the stages of a program on a mesh. Raises UsageError for an invalid sharding."""
    run = lower_to(target, settings, "imported")
    func = run["imported"].func
    assert func is not None
    quoted = ", ".join(map(json.dumps, shard))
    strict = "{strict=true}" if settings.strict else ""
    pipelines = (
        f"canonicalize,annotate{{mesh={json.dumps(mesh)}, shard=[{quoted}]}}",
        f"propagate{strict}",
        "reshard",
        "spmd",
    )
    walk_stages(func, list(zip(STAGES, pipelines, strict=True)), run)
    placed = run["resharded"].func
    assert placed is not None
    if placed.meshes:
        run.notes["mesh"] = drawing(placed)
    return run


def summary(run: Run) -> str:
    """Shows the sharding of inputs and outputs, the collectives, and the simulated time."""
    placed, local = run["resharded"].func, run["partitioned"].func
    assert placed is not None
    assert local is not None
    places = [(f"%{p.attrs['name']}", str(p.type), str(q.type)) for p, q in _pairs(placed, local)]
    ends = zip(placed.results, local.results, strict=True)
    places += [(f"return {i}", str(r.type), str(q.type)) for i, (r, q) in enumerate(ends)]
    if not view().is_whole:  # values of equal layers share a row
        groups = alike((pattern(name), *types) for name, *types in places)
        places = [(folded(places[i][0] for i in g), *places[g[0]][1:]) for g in groups]
    found = [table(["value", "sharding", "on a rank"], places), table_of(local)]
    if placed.meshes and all(isinstance(t.bytes, int) for n in local.nodes for t in n.types):
        known = machine(MACHINE)
        found.append(f"simulated on {known.title}: {simulate(local, placed.meshes[0], known)}")
    return "\n\n".join(found)


def _pairs(placed: Func, local: Func) -> Iterator[tuple[Node, Node]]:
    return zip(placed.params, local.params, strict=True)


def collectives(local: Func) -> list[dict[str, Any]]:
    """Lists the collectives of one rank's program, with the bytes that the rank sends."""
    found: list[dict[str, Any]] = []
    for block, node in walk(local.body):
        if traffic(node):
            over = str(node.attrs.get("over", "ranks"))
            lines = list(block.locs.get(node, ()))
            row = {"op": node.op, "over": over, "bytes": traffic(node), "source": lines}
            found.append({"value": block.names.get(node, node.op), **row})
    return found


def table_of(local: Func) -> str:
    """Returns the collectives as a table, with their sum; those of equal layers share a row."""
    rows = collectives(local)
    groups = [[i] for i in range(len(rows))] if view().is_whole else alike(map(_layer_key, rows))
    is_folded = len(groups) < len(rows)
    shown: list[list[str]] = []
    for group in groups:
        first = rows[group[0]]
        lines = [line for i in group for line in rows[i]["source"]]
        calls = [f"x {len(group)}"] if is_folded else []
        sent = str(sum(rows[i]["bytes"] for i in group))
        places = [*source_lines(lines), folded(module_paths(lines))]
        cells = [f"%{first['value']}", first["op"], *calls, first["over"], sent]
        shown.append([*cells, ", ".join(places if is_folded else first["source"])])
    total = sum(r["bytes"] for r in rows)
    calls, sent = (["calls"], "sum of bytes sent") if is_folded else ([], "bytes sent")
    head = ["value", "collective", *calls, "over", sent, "source"]
    text = table(head, shown, drop=["source"]) + "\n" if rows else ""
    return f"{text}{len(rows)} collective(s), each rank sends {total} bytes (loops count once)"


def _layer_key(row: dict[str, Any]) -> tuple[object, ...]:
    """Returns a key that corresponding collectives of equal layers have in common."""
    lines = row["source"]
    modules = frozenset(map(pattern, module_paths(lines)))
    name = base_name(row["value"])
    return name, row["op"], row["over"], row["bytes"], source_lines(lines), modules


def why(run: SavedRun, value: str) -> list[str]:
    """Explains the sharding of a value: the decisions by stage, and its shards.

    Raises UsageError with the known values if the program has no such value.
    """
    func = run.func("propagated")
    named = {str(p.attrs["name"]): p for p in func.params}
    named |= {name: node for node, name in func.body.names.items()}
    name = value.lstrip("%")
    if name not in named:
        raise unknown_name(f"@{func.name} has no value", name, named)
    lines = [f"{stage}: {note}" for stage, note in notes_of(run, name)]
    drawn = [pieces(f"%{name}", t) for t in named[name].types if t.sharding is not None]
    return [*(lines or [f"%{name} has the sharding that was given; no pass changed it"]), *drawn]


def notes_of(run: SavedRun, value: str) -> list[tuple[str, str]]:
    """Returns the decisions of passes on the sharding of a value, each as (stage, text).

    If a decision copies the sharding of another value, the decisions on that value follow.
    """
    name = "%" + value.lstrip("%")
    found = [
        (stage, note)
        for stage in run.stages
        if stage in STAGES
        for note in run.stage(stage)["notes"]
        if note.startswith((f"{name}:", f"{name} "))
    ]
    start = f"{name} is split like %"
    like = [note.removeprefix(start) for _, note in found if " is split like %" in note]
    return found + [more for other in like for more in notes_of(run, other)]


# ---- drawings


def drawing(placed: Func) -> str:
    """Draws the mesh, and the shards of each parameter and result."""
    parts = [mesh_drawing(placed.meshes[0])]
    named = [(f"%{p.attrs['name']}", p.tensor) for p in placed.params]
    named += [(f"return {i}", r.tensor) for i, r in enumerate(placed.results)]
    parts.extend(pieces(name, type_) for name, type_ in named if type_.sharding is not None)
    return "\n\n".join(parts)


def mesh_drawing(mesh: Mesh) -> str:
    """Draws the ranks of a mesh as a grid: columns for the last mesh axis, rows for the others."""
    axes = [mesh.axis(name) for name, _ in mesh.axes]
    *outer, last = axes
    lines = [f"mesh @{mesh}: rows {', '.join(map(str, outer)) or '-'}, columns {last}"]
    ranks = range(mesh.ranks)
    width = len(str(mesh.ranks - 1))
    for start in range(0, mesh.ranks, last.size):
        lines.append("  " + " ".join(f"{r:>{width}}" for r in ranks[start : start + last.size]))
    return "\n".join(lines)


def pieces(name: str, type_: TensorType) -> str:
    """Lists the shards of a value as text, one row per shard, with the ranks that hold it."""
    sharding = type_.sharding
    assert sharding is not None
    shape = ", ".join(map(str, sharding.local_shape(type_.shape)))
    lines = [f"{name}: {type_}, {type_.dtype}[{shape}] on each rank"]
    for place, ranks in _owners(sharding):
        index = ", ".join(
            f"{part} of {size_of(axes)}" if axes else ":"
            for part, axes in zip(place, sharding.axes)
        )
        lines.append(f"  [{index}]  ranks {' '.join(map(str, ranks))}")
    return "\n".join(lines)


def _owners(sharding: Sharding) -> list[tuple[tuple[int, ...], list[int]]]:
    """Returns each shard's position along every dim, with the ranks that have this shard."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(sharding.mesh.ranks):
        place: list[int] = []
        for axes in sharding.axes:
            number = 0
            for axis, position in zip(axes, sharding.mesh.positions(rank, axes), strict=True):
                number = number * axis.size + position
            place.append(number)
        found.setdefault(tuple(place), []).append(rank)
    every = itertools.product(*(range(size_of(axes)) for axes in sharding.axes))
    return [(place, found[place]) for place in every if place in found]
