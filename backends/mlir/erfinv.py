"""The inverse of erf: x times a polynomial of w = -log(1 - x x), or of sqrt(w) in the tails.

As in Giles ("Approximating the erfinv function", GPU Computing Gems 2, 2012), all lanes compute all
polynomials and select one. 1 - x x is (1 - |x|) (1 + |x|), whose factors are almost exact.
"""

from __future__ import annotations

from .logarithm import log_of
from .writer import Body

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
