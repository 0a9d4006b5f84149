"""Branch-free versions of functions whose library code branches.

A tile computes many elements side by side. A branch per element would keep all earlier values in
registers. Near 0, tanh and erf are x times a polynomial in x^2; elsewhere they use one exponential.
The polynomials are least-squares fits in double precision, with errors evened out.

The epilogue of a matmul runs while the tensor cores wait, so there the number of instructions
matters. `erf_ratio` is one ratio of polynomials, off by up to 5 ulp. `round_bf16` rounds two
elements with one instruction; `widen_bf16` takes one instruction per element. `inverse` is the
hardware's reciprocal, for numbers of at least 1. `brief_tanh` uses it, and an exponential of base
two. Tensor cores truncate operands to TF32; `round_tf32` rounds them to nearest.
"""

from __future__ import annotations

import re

from . import interpreter

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
    "erf_ratio": """@triton.jit
def erf_ratio(x):
    x = tl.minimum(x, 3.7, propagate_nan=tl.PropagateNan.ALL)
    x = tl.maximum(x, -3.7, propagate_nan=tl.PropagateNan.ALL)
    s = x * x
    p = (0.000228552963 * s + 0.00317692105) * s + 0.0502430424
    p = (p * s + 0.178987682) * s + 1.12837911
    q = (-1.27514244e-07 * s + 2.42775459e-05) * s + 0.00097236142
    q = ((q * s + 0.0135958102) * s + 0.108514637) * s + 0.491956621
    return x * p * inverse(q * s + 1.0)


""",
    "brief_tanh": """@triton.jit
def brief_tanh(x):
    size = tl.abs(x)
    s = x * x
    p = -0.005717038176953793 * s + 0.020650580525398254
    p = ((p * s - 0.05374349653720856) * s + 0.13331490755081177) * s - 0.3333328366279602
    near = x * (p * s + 1.0)
    far = 1.0 - 2.0 * inverse(1.0 + tl.exp2(size * 2.8853900817779268))
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, far))


""",
    "inverse": """@triton.jit
def inverse(x):
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


""",
    "round_bf16": """@triton.jit
def round_bf16(x):
    return tl.inline_asm_elementwise(
        "{.reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xffff0000;}",
        "=r,=r,f,f", [x], dtype=tl.float32, is_pure=True, pack=2,
    )


""",
    "widen_bf16": """@triton.jit
def widen_bf16(x):
    return tl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
        "=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2,
    )


""",
    # an opaque copy: keeps the compiler from holding wider values of the first copy in registers
    "again": """@triton.jit
def again(x):
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2
    )


""",
    "round_tf32": """@triton.jit
def round_tf32(x):
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )


""",
    # For a left operand. Not pure, or Triton 3.6 loads the rounded values directly into the layout
    # of the matmul: hoisted out of a loop, it then multiplies wrong elements.
    "round_tf32_left": """@triton.jit
def round_tf32_left(x):
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=False, pack=1
    )


""",
}
# replacements for the interpreter, which cannot execute inline assembly
INTERPRETED = {
    "round_tf32": """@triton.jit
def round_tf32(x):
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 4096) & -8192).to(tl.float32, bitcast=True)
    return tl.where(x == x, rounded, x)


""",
    "round_tf32_left": """@triton.jit
def round_tf32_left(x):
    return round_tf32(x)


""",
    "inverse": """@triton.jit
def inverse(x):
    return 1.0 / x


""",
    "round_bf16": """@triton.jit
def round_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)


""",
    "widen_bf16": """@triton.jit
def widen_bf16(x):
    return x.to(tl.float32)


""",
}
NEEDS = {"erf_ratio": ("inverse",), "brief_tanh": ("inverse",)}


def used(code: str) -> str:
    """Returns the source of the functions of this file that a kernel's text calls."""
    called = [name for name in FUNCTIONS if re.search(rf"\b{name}\(", code)]
    names = dict.fromkeys(n for name in called for n in (*NEEDS.get(name, ()), name))
    known = FUNCTIONS
    if interpreter.is_asked_for():
        known = {**FUNCTIONS, **INTERPRETED}
    return "".join(known[name] for name in names)
