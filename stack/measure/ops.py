"""Cases of `stackc bench ops`: hosted operators, by row of the bench."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stack.measure.suite import Case

ON_CPU = "stack.demos.ops_programs:program"
ON_GPU = "stack.demos.gpu_ops:operator"
OWN = "triton{hosted=generated}"  # hand-written kernels are rivals
PEERS = {"cpu": "inductor,xla,eager", "cuda": "inductor,eager,rivals"}
QUICK_PEERS = "xla,eager"  # peers that compile in seconds
GENERATED, HAND = "mlir{hosted=generated}", "mlir{hosted=hand}"
# rows of the bench, their operators, and sizes if there are several
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("G1", "attention.attention", {"width": 128}),
    ("G2", "attention.attention", {"width": 64}),
    ("G3", "attention.with_lse", {"width": 128}),
    ("G3", "attention.with_lse", {"width": 64}),
    ("G4", "attention.with_documents", {}),
    ("G5", "attention.paged", {}),
    ("G5", "attention.with_cache", {}),
    ("G5", "attention.mla_absorbed", {}),
    ("G7", "attention.rope", {}),
    ("G8", "qgemm.fp8_tensor", {}),
    ("G8", "qgemm.fp8", {}),
    ("G8", "qgemm.fp8_block", {}),
    ("G9", "qgemm.w4a16", {}),
    ("G9", "qgemm.w4a16_awq", {}),
    ("G9", "qgemm.w4a16_gptq", {}),
    ("G9", "qgemm.nf4", {}),
    ("G9", "qgemm.mx", {}),
    ("G9", "qgemm.nvfp4", {}),
    ("G10", "qgemm.w8a8_dynamic", {}),
    ("G11", "norm.rms_norm", {}),
    ("G14", "loss.linear_cross_entropy", {}),
    ("G15", "scan.gated", {}),
    ("G15", "scan.selective", {}),
    ("G16", "scan.inclusive", {}),
    ("G17", "scan.ssd", {}),
    ("G17", "scan.gla", {}),
    ("G17", "scan.retention", {}),
    ("G17", "scan.delta", {}),
)
# rows, results and depth of matmuls on a GPU, besides 4096^3; layers of DeepSeek-V3
DEEPSEEK = (
    *((2112, 7168), (24576, 1536), (32768, 512)),
    *((7168, 16384), (4096, 7168), (7168, 2048)),
)
SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "qgemm.fp8": ((8192, 8192, 8192),),
    "qgemm.fp8_block": (
        (8192, 8192, 8192),
        *((rows, *layer) for rows in (64, 128, 4096) for layer in DEEPSEEK),
    ),
    "qgemm.w8a8_dynamic": tuple((rows, 8192, 8192) for rows in (16, 128, 1024, 8192)),
}
FORWARD, BACKWARD = ("forward",), ("forward", "backward")
# on a CPU, gradients are timed for operators that declare their own
MODES = {
    "cpu": {
        "attention.with_lse": BACKWARD[1:],
        **dict.fromkeys(("scan.gated", "scan.gla"), BACKWARD),
    },
    "cuda": {
        "attention.with_lse": BACKWARD[1:],
        **dict.fromkeys(("scan.gated", "scan.ssd", "scan.gla"), BACKWARD),
    },
}
# operators with a hand-written CPU kernel
BY_HAND = ("qgemm.w4a16",)
# rows that need several devices
RANKS = {
    "G18": ("all-reduce",),
    "G19": ("all-reduce + norm", "GEMM + reduce-scatter", "all-gather + GEMM"),
}
SKIPPED = "one device has no peer; torchrun -m stack.demos.{collectives,norm_race,products_race}"


def ops_cases(device: str = "cpu", quick: bool = False) -> list[Case]:
    """Returns the cases of the operator suite: calls of each operator, and of its gradients.

    `device` is "cpu" or "cuda". The first case of each row is in the short suite; `quick` uses only
    peers that compile in seconds.
    """
    found = [
        _case(row, {"op": op, "mode": mode, **sizes}, device, quick)
        for row, op, usual in ROWS
        for sizes in (usual, *({"shape": s} for s in SHAPES.get(op, ()) if device == "cuda"))
        for mode in MODES[device].get(op, FORWARD)
    ]
    for row, names in RANKS.items():
        found += [Case(row, {"op": name}, "", skip=SKIPPED) for name in names]
    first = {c.row: c for c in reversed(found)}
    return [replace(c, quick=c is first[c.row] or bool(c.skip)) for c in found]


def _case(row: str, options: dict[str, Any], device: str, quick: bool) -> Case:
    is_by_hand = device == "cpu" and options["op"] in BY_HAND
    return Case(
        row,
        options,
        ON_GPU if device == "cuda" else ON_CPU,
        options,
        frontend="torch",
        peers=QUICK_PEERS if quick and device == "cpu" else PEERS[device],
        ir_only=("eager",),  # op by op, an operator is its decomposition anyway
        own=f"{GENERATED},{HAND}" if is_by_hand else "",
    )
