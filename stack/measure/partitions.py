"""`stackc compare --sharding`: compare how systems partition one annotated program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import stack.plugins as plugins
from stack.errors import UsageError
from stack.explore.table import table
from stack.ir.func import Func
from stack.ir.node import Node, walk
from stack.mesh.meshes import size_of
from stack.mesh.ops import group_of, halo_messages, traffic
from stack.rewrite import Pipeline
from stack.run.partitioner import COLLECTIVES, Collective, Partition, Partitioner, partition_of

SCHEMA = "stack.compare-sharding/1"
PASSES = "propagate,reshard,spmd"
LIMIT = 300.0  # time limit of a system in seconds


@dataclass(frozen=True)
class Row:
    """The partition of a program over a mesh by one system, or the reason why there is none."""

    system: str
    made: Partition | None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns a dictionary for JSON."""
        held: dict[str, Any] = {"system": self.system, "ok": self.made is not None}
        if self.made is not None:
            held["collectives"] = self.made.counts()
            held["bytes_sent"], held["latency_steps"] = self.made.sent, self.made.steps
            held["peak_bytes"], held["planning_s"] = self.made.peak, self.made.seconds
        return {**held, "note": self.note}


def compare_partitions(annotated: Func, peers: Sequence[str]) -> list[Row]:
    """Partitions a program with our passes, then with peers, each in its own process.

    Raises UsageError for a program without sharding annotations.
    """
    if not annotated.meshes:
        params = ", ".join(str(p.attrs["name"]) for p in annotated.params)
        raise UsageError(
            f"@{annotated.name} has no sharding annotations; add some with --shard"
            f" 'NAME: AXIS', where NAME is a pattern of its parameters ({params}) or return"
        )
    return [Row("stack", ours(annotated)[0]), *(peer_row(annotated, name) for name in peers)]


def ours(annotated: Func) -> tuple[Partition, Func, Func]:
    """Partitions a program with our passes; also returns the resharded and the local program."""
    start = time.perf_counter()
    records = Pipeline(PASSES).run(annotated).records
    seconds = time.perf_counter() - start
    placed, local = records[1].after, records[2].after
    found = [c for _, node in walk(local.body) if traffic(node) for c in _collectives(node)]
    return Partition(tuple(found), seconds, peak_bytes(local)), placed, local


def _collectives(node: Node) -> list[Collective]:
    if node.op == "halo":  # other systems have no halo exchange: count a permute for each neighbour
        return [Collective("permute", 2, size) for size in halo_messages(node)]
    ranks = 2 if node.op == "permute" else size_of(group_of(node.attrs)[1])
    return [Collective(node.op, ranks, int(cast("int", node.args[0].tensor.bytes)))]


def peak_bytes(local: Func) -> int:
    """Returns the peak bytes of one rank's arrays; each is freed after its last reader.

    Parameters and results are never freed.
    """
    last = {arg: node for node in local.nodes for arg in node.args}
    kept = {*local.params, *local.results}
    live = sum(_bytes(p) for p in local.params)
    most = live
    for node in local.nodes:
        live += _bytes(node)
        most = max(most, live)
        ended = {a for a in node.args if last[a] is node and a not in kept}
        live -= sum(map(_bytes, ended))
    return most


def _bytes(node: Node) -> int:
    """Returns the bytes that a node allocates; views allocate nothing."""
    if node.op in ("item", "const", "reshape", "broadcast", "transpose"):
        return 0
    return sum(int(cast("int", type_.bytes)) for type_ in node.types)


def peer_row(annotated: Func, name: str) -> Row:
    """Returns a peer's partition of a program, made in a process of its own, or why there is none.

    Raises UsageError if no partitioner is called `name`.
    """
    partitioner: Partitioner = plugins.load("stack.partitioners", name)
    missing = partitioner.missing()
    if missing is not None:
        return Row(name, None, missing)
    devices = partitioner.devices(annotated.meshes[0].ranks)
    command = [sys.executable, "-m", "stack.measure.partition_child", name]
    try:
        child = subprocess.run(
            command,
            input=str(annotated),
            env={**os.environ, **devices},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(name, None, f"no answer after {LIMIT:.0f} s")
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        return Row(name, None, lines[-1])
    document = json.loads(child.stdout.splitlines()[-1])
    if "error" in document:
        return Row(name, None, document["error"])
    return Row(name, partition_of(document))


def describe(rows: Sequence[Row]) -> str:
    """Formats the rows as a table."""
    shown: list[list[str]] = []
    for row in rows:
        made = row.made
        if made is None:
            shown.append([row.system, *["-"] * (len(COLLECTIVES) + 4), row.note])
            continue
        counts = made.counts()
        peak = "-" if made.peak is None else kib(made.peak)
        numbers = [kib(made.sent), str(made.steps), peak, f"{made.seconds:.2f}"]
        ops = [str(counts.get(op, 0)) for op in COLLECTIVES]
        shown.append([row.system, *ops, *numbers, row.note])
    head = ["system", *(op.replace("_", "-") for op in COLLECTIVES)]
    drop = ["note", "planning s", "peak KiB"]
    return table([*head, "KiB sent", "steps", "peak KiB", "planning s", "note"], shown, drop=drop)


def kib(size: int) -> str:
    """Formats bytes in KiB with few digits."""
    return f"{size / 1024:.1f}".removesuffix(".0")
