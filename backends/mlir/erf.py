"""erf of f32 by tables, with an instruction that looks up entries in a register.

There is one polynomial for each of 16 intervals, around a place where erf is almost an f32 (Gal,
"Computing elementary functions", 1986): erf(x) = value + t P(t), t = |x| - place. In the first
interval value is 0, and |x| replaces it, so that small results are exact to their last bit.

The inverse of erf is x times a polynomial of w = -log(1 - x x), or of sqrt(w) in the tails. As in
Giles ("Approximating the erfinv function", GPU Computing Gems 2, 2012), all lanes compute all
polynomials and select one. 1 - x x is (1 - |x|) (1 + |x|), whose factors are almost exact.
"""

from __future__ import annotations

from .avx512 import LANES, looked_up
from .exponential import log_of
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


INF = float("inf")
# The factor of x on each interval: its value at the lower end, then the coefficients, lowest power
# first, of P(t) in value + (t + 1) P(t), with t from -1 to 1. Both terms are positive, so rounding
# errors do not grow. Interpolated at Chebyshev nodes. CENTER is in w, the others in sqrt(w).
CENTER = (0.88622695, 0.6151824, 0.0014182337, -0.027526649, 0.0079534175, 0.0005744331)
CENTER += (-0.0010625041, 0.00021905216, 7.022899e-05, -3.5735004e-05)
TAIL = (2.0798128, 0.8715158, 0.013642703, -0.008073339, 0.004362478, -0.0020134994)
TAIL += (0.00064465764, -4.054586e-05, -0.00010394846, 6.0487153e-05, -3.5100109e-06)
TAIL += (-5.7840675e-06,)
CENTER_F64 = (0.886226925452758, 0.7674276372303447, -0.016933317150381197, -0.04198924995340046)
CENTER_F64 += (0.019384802499955733, -0.0015764406814816874, -0.0025608736960662077)
CENTER_F64 += (0.001289181424357715, -5.6695854058293385e-05, -0.0002076977833226333)
CENTER_F64 += (9.08089325101257e-05, 2.558285012855473e-06, -1.7585950785972667e-05)
CENTER_F64 += (6.329252318302334e-06, 8.006874248446169e-07, -1.4858633915108002e-06)
CENTER_F64 += (4.26744581692047e-07, 1.1497205326835576e-07, -1.253847461095154e-07)
CENTER_F64 += (2.4339855718886433e-08, 1.497525585757915e-08, -8.625454170890242e-09)
CENTER_F64 += (-1.7368381241516496e-12, 9.530140301387998e-10, -1.7284281023517458e-10)
MIDDLE_F64 = (2.335945363810792, 0.7479402466814288, 0.006003979089195208, -0.0029828396528212924)
MIDDLE_F64 += (0.0014002985634178524, -0.0006119907120846244, 0.00021135501366344197)
MIDDLE_F64 += (-4.168999203244918e-05, -5.701834746379466e-06, 8.107701817931167e-06)
MIDDLE_F64 += (-2.9803873475823993e-06, 3.1558495501710594e-07, 2.1088307552539538e-07)
MIDDLE_F64 += (-1.1797009258826006e-07, 2.327163321287896e-08, 3.0996215464406176e-09)
MIDDLE_F64 += (-3.4604913779102682e-09, 1.0237354394095787e-09, -3.8688306284865715e-11)
MIDDLE_F64 += (-9.047742078170206e-11, 2.661895673295015e-11)
TAIL_F64 = (3.839783797411554, 1.015174102826539, 0.0001764540634093628, -0.00031981034114369263)
TAIL_F64 += (0.00010307645058270673, -2.6050061765501252e-05, 6.0099785480579055e-06)
TAIL_F64 += (-1.3820829239994754e-06, 3.632009513890836e-07, -1.279556200388503e-07)
TAIL_F64 += (5.877643026488974e-08, -2.913754380697012e-08, 1.3554485021518623e-08)
TAIL_F64 += (-5.496562838305168e-09, 1.8229012276467922e-09, -4.3485634301425615e-10)
TAIL_F64 += (3.047886807748957e-11, 3.988805086652891e-11, -2.5749779407523932e-11)
TAIL_F64 += (7.059506053963764e-12, -6.175548955598028e-13)
# ends of the intervals: of w, then of sqrt(w); the last one includes the largest x below 1
ENDS, ENDS_F64 = (0.0, 5.0, 5.0**0.5, 4.0), (0.0, 6.25, 2.5, 4.0, 4.0, 6.01)


def erfinv(b: Body) -> str:
    """The inverse of erf at `%x0`, except for signs at 0, 1 and -1; nan beyond."""
    size = b.op("math.absf", "%x0")
    log = log_of(b, b.mul(b.sub(1.0, size), b.add(1.0, size)))
    w = b.op("arith.negf", log)
    root = b.op("math.sqrt", w)
    polynomials = b.by_type((CENTER, TAIL), (CENTER_F64, MIDDLE_F64, TAIL_F64))
    ends = b.by_type(ENDS, ENDS_F64)
    inside = ""
    for i, (start, *coefficients) in enumerate(polynomials):
        low, high = ends[2 * i : 2 * i + 2]
        half, of = (high - low) / 2, root if i else w
        more = b.mul(b.sub(of, low), 1 / half)
        p = b.polynomial(b.sub(more, 1.0), coefficients)
        value = b.fma(b.mul("%x0", more), p, b.mul("%x0", start))
        inside = b.select(b.compare("ogt", of, low), value, inside) if i else value
    return b.select(b.compare("oeq", size, 1.0), INF, inside)
