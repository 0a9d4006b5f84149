"""erf of f32 by tables, with an instruction that looks up entries in a register.

There is one polynomial for each of 16 intervals, around a place where erf is almost an f32 (Gal,
"Computing elementary functions", 1986): erf(x) = value + t P(t), t = |x| - place. In the first
interval value is 0, and |x| replaces it, so that small results are exact to their last bit.
"""

from __future__ import annotations

from .avx512 import LANES, looked_up
from .writer import MAGIC, Body, Function, call, vector

END = 3.925  # erf is 1 from here on
INTERVALS = 3.9440205  # per unit of |x|: END is in the last one

# places and values per interval; then coefficients, lowest power first: Lawson-weighted fits,
# rounded to f32 one after another
# fmt: off
PLACES, VALUES, *COEFFICIENTS = (
    (0.0, 0.25353548, 0.5069223, 0.76071304, 1.0141723, 1.2681195, 1.5217239, 1.7752097,
     2.028961, 2.2811265, 2.5347571, 2.78863, 3.0419605, 3.295258, 3.5487237, 3.8041794),
    (0.0, 0.28007072, 0.526562, 0.7179881, 0.84850085, 0.9270897, 0.968606, 0.98794484,
     0.9958873, 0.99874467, 0.9996625, 0.9999198, 0.9999831, 0.99999684, 0.99999946,
     0.99999994),
    (0.12837917, 1.0581288, 0.87267864, 0.6326094, 0.40342557, 0.22597188, 0.111374006,
     0.048287276, 0.01839088, 0.0062027904, 0.0018285874, 0.0004733504, 0.00010806904,
     2.1705577e-05, 3.8299545e-06, 5.8538336e-07),
    (2.7184208e-07, -0.2682687, -0.4423747, -0.4812314, -0.40914372, -0.28656173,
     -0.16948254, -0.08572093, -0.037314367, -0.014149019, -0.00463473, -0.0013198369,
     -0.00032867258, -7.150074e-05, -5.6563626e-06, -9.571781e-06),
    (-0.37614116, -0.30739072, -0.14140981, 0.033176906, 0.1421512, 0.16693763, 0.13481233,
     0.085353345, 0.04434335, 0.019450411, 0.007222914, 0.0022960957, 0.00063059625,
     0.00014987164, 2.993379e-05, 4.5791035e-06),
    (0.0002778438, 0.12748083, 0.18218663, 0.14721969, 0.064431585, -0.009845484,
     -0.045664128, -0.0470079, -0.032550044, -0.017534807, -0.0076685436, -0.002794732,
     -0.00086369406, -0.0002279774, -0.0005440919, 0.0004463467),
    (0.11100769, 0.080229156, 0.006271275, -0.054219097, -0.06840285, -0.044839613,
     -0.012598235, 0.007706443, 0.013025049, 0.010073821, 0.0055553424, 0.0024068702,
     0.0008529566, 0.00025244002, 0.00017980806, 0.00012158571),
)
# fmt: on


def erf_by_table(b: Body) -> str:
    """erf of `%x0`, for any number of lanes."""
    lanes = max(LANES, 1 << (b.lanes - 1).bit_length())
    if lanes != b.lanes:
        return _on_more_lanes(b, lanes)
    size = b.at_most(b.op("math.absf", "%x0"), END)
    z = b.fma(size, INTERVALS, MAGIC)
    index = b.to_bits(z)
    t = b.sub(size, looked_up(b, PLACES, index))
    start = b.select(b.compare("oeq", z, MAGIC), size, looked_up(b, VALUES, index))
    *lower, p = [looked_up(b, c, index) for c in COEFFICIENTS]
    for c in reversed(lower):
        p = b.fma(p, t, c)
    return b.op("math.copysign", b.fma(t, p, start), "%x0")


def _on_more_lanes(b: Body, lanes: int) -> str:
    b.uses.append(Function("erf", b.element, lanes))
    t = vector(b.element, lanes)
    if b.lanes == 1:
        x = b.do(f"vector.broadcast %x0 : {b.element} to {t}")
    else:
        picks = [i % b.lanes for i in range(lanes)]
        x = b.do(f"vector.shuffle %x0, %x0 {picks} : {b.type}, {b.type}")
    y = b.do(call("", "erf", b.element, lanes, x).removeprefix(" = "))
    if b.lanes == 1:
        return b.do(f"vector.extract {y}[0] : {b.element} from {t}")
    return b.do(f"vector.shuffle {y}, {y} {list(range(b.lanes))} : {t}, {t}")
