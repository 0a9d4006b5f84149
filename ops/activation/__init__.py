"""Gated activations."""

from __future__ import annotations

from stack.hosted import op


@op("activation.swiglu", rule="... d, ... d -> ... d")
def swiglu(np, gate, up):
    """gate * sigmoid(gate) * up: Shazeer, "GLU Variants Improve Transformer", 2020.

    `gate [..., d]`, `up [..., d]` of one float type; computed in at least f32.
    """
    wide = gate.astype(np.result_type(gate, np.float32))
    # for a large negative gate, exp(-gate) is inf and the quotient 0
    return (wide / (1 + np.exp(-wide)) * up.astype(wide.dtype)).astype(gate.dtype)
