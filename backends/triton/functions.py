"""Functions that the language leaves to a library with branches, without any.

Code of a tile computes its elements side by side; a branch for each keeps all that came before
it in registers. Near 0 both are x times a polynomial in x^2, elsewhere they come from one
exponential.
The polynomials are least-squares fits in double precision with errors evened out.
"""

from __future__ import annotations

FUNCTIONS = {
    "tanh_f32": """@triton.jit
def tanh_f32(x):
    size = tl.abs(x)
    s = x * x
    p = -0.005717038176953793 * s + 0.020650580525398254
    p = ((p * s - 0.05374349653720856) * s + 0.13331490755081177) * s - 0.3333328366279602
    near = x * (p * s + 1.0)
    far = 1.0 - 2.0 / (1.0 + tl.exp(size * 2.0))
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, far))


""",
    "erf_f32": """@triton.jit
def erf_f32(x):
    size = tl.abs(x)
    s = x * x
    p = (7.99664995e-05 * s - 0.000804976968) * s + 0.00519240508
    p = ((p * s - 0.0268557314) * s + 0.112836257) * s - 0.376126289
    near = (p * s + 0.128379166) * x + x
    t = tl.where(size > 4.0, 4.0, size)
    q = (1.04291357e-05 * t - 0.000314828183) * t + 0.00361025473
    q = ((q * t - 0.0236944426) * t + 0.106158964) * t + 0.635198057
    far = 1.0 - tl.exp(-t * (q * t + 1.12863708))
    return tl.where(size < 0.9, near, tl.where(x < 0, -far, far))


""",
}


# a compiler takes it for another value: wider ones made of the first are not kept for it
AGAIN = """@triton.jit
def again(x):
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2
    )


"""


KNOWN = {**FUNCTIONS, "again": AGAIN}


def used(code: str) -> str:
    """The functions that some code calls."""
    return "".join(text for name, text in KNOWN.items() if f" {name}(" in code)
