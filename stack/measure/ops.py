"""The rows of `stackc bench ops`: hosted operators, by the row of the bench that they stand in."""

from __future__ import annotations

from stack.measure.suite import Case

PROGRAMS = "stack.demos.ops_programs"
ON_GPU = "stack.demos.gpu_ops:operator"
OWN = "triton{hosted=generated}"  # by hand they race as rivals
PEERS = {"cpu": "inductor,xla,eager", "cuda": "inductor,eager,rivals"}
# operators by the row of the bench that they stand in
ROWS = {
    "attention.attention": "G1",
    "attention.with_lse": "G3",
    "attention.with_documents": "G4",
    "attention.with_cache": "G5",
    "attention.paged": "G5",
    "attention.mla_absorbed": "G5",
    "attention.rope": "G7",
    "norm.rms_norm": "G11",
    "loss.linear_cross_entropy": "G14",
    "scan.gated": "G15",
    "scan.selective": "G15",
    "scan.inclusive": "G16",
    "scan.ssd": "G17",
    "scan.gla": "G17",
    "scan.retention": "G17",
    "scan.delta": "G17",
}
GRADIENTS = ("attention.with_lse", "scan.gated", "scan.ssd", "scan.gla")
QUICK = ("attention.attention", "attention.paged", "scan.gated", "scan.inclusive", "scan.ssd")


def ops_cases(device: str = "cpu") -> list[Case]:
    """A call of each operator, on a GPU its gradients too; `device` is "cpu" or "cuda"."""
    found: list[Case] = []
    for op, row in ROWS.items():
        modes = ("forward", "backward") if device == "cuda" and op in GRADIENTS else ("forward",)
        for mode in modes:
            found.append(
                Case(
                    row,
                    {"op": op, "mode": mode},
                    ON_GPU if device == "cuda" else f"{PROGRAMS}:program",
                    {"op": op, "mode": mode} if device == "cuda" else {"op": op},
                    frontend="torch",
                    peers=PEERS[device],
                    quick=op in QUICK and mode == "forward",
                )
            )
    return sorted(found, key=lambda c: int(c.row[1:]))
