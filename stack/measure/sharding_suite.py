"""`stackc bench sharding`: programs on a mesh of dp=2, tp=4, by the bytes that a rank sends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stack.explore.lowering import Settings, capture
from stack.explore.table import table
from stack.explore.target import ExampleCall, resolve
from stack.explore.terminal import filled
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.space import NumpySpace
from stack.measure.partitions import Row, kib, ours, peer_row
from stack.measure.systems import Say
from stack.rewrite import Pipeline
from stack.run.mesh import simulate

SCHEMA = "stack.bench-sharding/1"
PROGRAMS = "stack.demos.sharding_programs"
MESH = "dp=2, tp=4"
CLOSE = 1e-4  # tolerance of a result, relative to its largest element
KIB = 1024
ALL = "{dp, tp}"
MEGATRON = (
    *("weights.*.[qkv]: -, tp", "weights.*.up: -, tp"),  # by columns
    *("weights.*.o: tp", "weights.*.down: tp"),  # by rows
)
HEADS = ("queries: dp, -, tp", "keys: dp, -, tp", "values: dp, -, tp", "mixed: dp, -, tp")
EXPERTS = (f"x: {ALL}", "router: -", f"up: {ALL}", f"down: {ALL}", f"return: {ALL}")


@dataclass(frozen=True)
class ShardingCase:
    """A program and its annotations.

    Attributes:
        gpu: KiB that a rank sends in XLA's partition for GPUs, measured with its plug-in; None if
            not measured.
        reach: KiB that a rank sends at most, if our partition reaches its goal.
    """

    name: str
    factory: str
    shard: tuple[str, ...]
    gpu: float | None
    reach: float

    def annotated(self) -> tuple[Func, list[np.ndarray[Any, Any]]]:
        """Returns the imported program with its annotations, and arrays for its parameters."""
        target = resolve(f"{PROGRAMS}:{self.factory}", "jax")
        assert isinstance(target, ExampleCall)
        captured, _ = capture(target, Settings(frontend="jax"))
        func = annotate(captured.func, MESH, self.shard)
        return func, [np.asarray(a) for a in captured.flatten(*target.args)]


CASES = (
    ShardingCase(
        "MLP, tensor parallel",
        "mlp_forward",
        ("x: dp", "up: -, tp", "down: tp", "return: dp"),
        384,
        384,
    ),
    ShardingCase(
        "MLP, tensor and sequence parallel",
        "mlp_forward",
        ("x: dp, tp", "up: -, tp", "down: tp", "return: dp, tp"),
        384,
        384,
    ),
    ShardingCase(
        "MLP, sharded weights, training",
        "mlp_train",
        (f"x: {ALL}", f"weights*: {ALL}", f"return: {ALL}"),
        5880,
        3584,
    ),
    ShardingCase(
        "attention by context",
        "attention_forward",
        ("x: dp, tp", "[qkvo]: -", "return: dp, tp"),
        384,
        192,
    ),
    ShardingCase(
        "attention by context, heads constrained",
        "attention_forward",
        ("x: dp, tp", "[qkvo]: -", "return: dp, tp", *HEADS),
        240,
        192,
    ),
    ShardingCase("experts", "experts_forward", EXPERTS, 448, 448),
    ShardingCase(
        "experts, dispatch constrained",
        "experts_forward",
        (*EXPERTS, f"held: {ALL}", f"made: {ALL}"),
        732,
        448,
    ),
    ShardingCase(
        "convolutions by rows of images",
        "convolutions_forward",
        ("x: dp, -, tp", "return: dp, -, tp"),
        None,
        64,  # rows of neighbours: 2 of 16 KiB, 1 of 16, 2 of 8
    ),
    ShardingCase(
        "rows added to a table in parts",
        "add_rows_forward",
        ("table: tp", "index: dp", "rows: dp", "return: tp"),
        None,
        257,  # the other half of the rows and of their indices
    ),
    ShardingCase(
        "8 layers, tensor and sequence parallel",
        "layers_forward",
        ("x: dp, tp", *MEGATRON, "return: dp, tp"),
        12288,
        6144,
    ),
    ShardingCase(
        "8 layers, sharded weights, training",
        "layers_train",
        (f"x: {ALL}", f"weights*: {ALL}", f"return: {ALL}"),
        63168,
        43008,
    ),
)


def annotate(func: Func, mesh: str, shard: Iterable[str]) -> Func:
    """Canonicalizes a function and adds annotations in the user's syntax."""
    held = ", ".join(f'"{text}"' for text in shard)
    return Pipeline(f'canonicalize,annotate{{mesh="{mesh}", shard=[{held}]}}').run(func).func


@dataclass(frozen=True)
class CaseRows:
    """Results of one case: each system's partition, and the error of ours.

    The error is relative to the results of the whole program on one device.
    """

    case: ShardingCase
    rows: tuple[Row, ...]
    error: float

    @property
    def sent(self) -> int:
        """Bytes that each rank sends in our partition."""
        made = self.rows[0].made
        assert made is not None
        return made.sent

    @property
    def problems(self) -> list[str]:
        """The problems of our partition: a wrong result, or ranks that send more than in XLA's."""
        found: list[str] = []
        if not self.error <= CLOSE:
            found.append(f"differs from the whole program by {self.error:.1e}")
        xla: list[float] = [r.made.sent for r in self.rows if r.system == "xla" and r.made]
        if self.case.gpu is not None:
            xla.append(self.case.gpu * KIB)
        if self.sent > min(xla, default=math.inf):
            found.append("sends more than XLA")
        return [f"{self.case.name}: {problem}" for problem in found]


@dataclass
class ShardingBench:
    """Results of all cases of the sharding suite."""

    found: list[CaseRows] = field(default_factory=list[CaseRows])

    @property
    def problems(self) -> list[str]:
        """The problems of all cases."""
        return [problem for case in self.found for problem in case.problems]

    @property
    def reached(self) -> int:
        """The number of cases in which our partition sends no more bytes than its goal."""
        return sum(case.sent <= case.case.reach * KIB for case in self.found)

    def as_dict(self) -> dict[str, Any]:
        """Returns the document of `--json`."""
        rows = [
            {
                "case": found.case.name,
                "mesh": MESH,
                "shard": found.case.shard,
                "xla_gpu_bytes": None if found.case.gpu is None else found.case.gpu * KIB,
                "reach_bytes": found.case.reach * KIB,
                "error": found.error,
                "systems": [row.as_dict() for row in found.rows],
            }
            for found in self.found
        ]
        return {"schema": SCHEMA, "rows": rows, "problems": self.problems}

    def text(self) -> str:
        """Formats the table."""
        systems = list(dict.fromkeys(row.system for found in self.found for row in found.rows))
        head = ["program", *systems, "XLA:GPU", "goal", "planning s", "error"]
        shown: list[list[str]] = []
        for found in self.found:
            sent = {row.system: kib(row.made.sent) for row in found.rows if row.made}
            made = found.rows[0].made
            assert made is not None
            cells = [found.case.name, *(sent.get(system, "fails") for system in systems)]
            gpu = "-" if found.case.gpu is None else f"{found.case.gpu:g}"
            limits = [gpu, f"{found.case.reach:g}"]
            shown.append([*cells, *limits, f"{made.seconds:.2f}", f"{found.error:.0e}"])
        told = [
            f"{found.case.name}: {row.system}: {row.note}"
            for found in self.found
            for row in found.rows
            if row.note
        ]
        end = f"{self.reached} of {len(self.found)} reach the goal"
        return "\n".join(
            [
                f"KiB sent by a rank, mesh {MESH}",
                table(head, shown, drop=["XLA:GPU", "planning s", "error"]),
                end,
                *map(filled, (*told, *self.problems)),
            ]
        )


def sharding_bench(cases: Sequence[ShardingCase], peers: Sequence[str], say: Say) -> ShardingBench:
    """Partitions every case, runs it on a simulated mesh, and lets peers partition it."""
    bench = ShardingBench()
    for case in cases:
        func, arrays = case.annotated()
        made, placed, local = ours(func)
        found = simulate(placed, local, arrays, filler=np.nan).results
        wholes = evaluate(func.body, arrays, NumpySpace())
        error = max(_distance(f, w) for f, w in zip(found, wholes, strict=True))
        rows = [Row("stack", made), *(peer_row(func, name) for name in peers)]
        told = [f"{r.system} {kib(r.made.sent) if r.made else r.note}" for r in rows]
        say(f"{case.name}: {', '.join(told)} KiB")
        bench.found.append(CaseRows(case, tuple(rows), error))
    return bench


def _distance(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())
