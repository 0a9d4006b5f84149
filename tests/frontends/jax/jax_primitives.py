"""Small JAX programs: elementwise ops, complex numbers, linear algebra and special functions."""

from __future__ import annotations

import jax
import jax.extend
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import lax
from jax_inputs import BF, C, H, I, P, U, X, enter

# ---- elementwise

enter(
    {
        f"lax.{n}": getattr(lax, n)
        for n in (
            "abs",
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "bessel_i0e",
            "bessel_i1e",
            "cbrt",
            "ceil",
            "cos",
            "cosh",
            "digamma",
            "erf",
            "erf_inv",
            "erfc",
            "exp",
            "exp2",
            "expm1",
            "floor",
            "is_finite",
            "lgamma",
            "log",
            "log1p",
            "logistic",
            "neg",
            "reciprocal",
            "round",
            "rsqrt",
            "sign",
            "sin",
            "sinh",
            "sqrt",
            "square",
            "tan",
            "tanh",
            "stop_gradient",
            "cumlogsumexp",
            "full_like",
            "optimization_barrier",
        )
    }
    | {"lax.full_like": lambda x: lax.full_like(x, 2)},
    X,
)
enter(
    {
        f"lax.{n}.bf16": getattr(lax, n)
        for n in (
            "bessel_i0e",
            "bessel_i1e",
            "digamma",
            "lgamma",
            "erf_inv",
            "erfc",
            "cumlogsumexp",
            "tan",
        )
    },
    BF,
)
enter(
    {
        f"lax.{n}": getattr(lax, n)
        for n in (
            "add",
            "atan2",
            "div",
            "eq",
            "ge",
            "gt",
            "le",
            "lt",
            "max",
            "min",
            "mul",
            "ne",
            "nextafter",
            "pow",
            "rem",
            "sub",
            "igamma",
            "igammac",
            "igamma_grad_a",
            "random_gamma_grad",
            "polygamma",
            "zeta",
        )
    },
    X,
    X * 3,
)
enter(
    {f"lax.{n}.f16": getattr(lax, n) for n in ("igamma", "zeta", "polygamma", "nextafter")},
    H,
    H * 3,
)
enter(
    {
        "lax.betainc": lambda x: lax.betainc(x, x * 2, x / 2),
        "lax.integer_pow": lambda x: lax.integer_pow(x, -3),
        "lax.reduce_precision": lambda x: lax.reduce_precision(x, 5, 7),
        "lax.reduce_precision.wide": lambda x: lax.reduce_precision(x, 11, 52),
        "lax.clamp": lambda x: lax.clamp(0.3, x, 0.6),
        "lax.select_n": lambda x: lax.select_n(x > 0.5, x, -x),
        "lax.convert": lambda x: lax.convert_element_type(x * 99, jnp.int8),
        "lax.bitcast": lambda x: lax.bitcast_convert_type(x, jnp.uint16),
        "lax.round.even": lambda x: lax.round(x * 5, lax.RoundingMethod.TO_NEAREST_EVEN),
        "lax.dynamic_index": lambda x: lax.dynamic_index_in_dim(x, 2, 1),
    },
    X,
)
enter(
    {
        "lax.population_count": lax.population_count,
        "lax.clz": lax.clz,
        "lax.bitwise_not": lax.bitwise_not,
        "lax.sign.int": lax.sign,
        "lax.abs.int": lax.abs,
        "lax.integer_pow.int": lambda x: lax.integer_pow(x, 3),
        "lax.shift_left": lambda x: lax.shift_left(x, 3),
        "lax.shift_right_logical": lambda x: lax.shift_right_logical(x, 3),
        "lax.shift_right_arithmetic": lambda x: lax.shift_right_arithmetic(x, 40),
        "lax.reduce_xor": lambda x: lax.reduce(x, 0, lax.bitwise_xor, [1]),
        "lax.reduce_and": lambda x: lax.reduce(x, -1, lax.bitwise_and, [0]),
        "lax.reduce_or": lambda x: lax.reduce(x, 0, lax.bitwise_or, [0, 1]),
        "lax.div.int": lambda x: lax.div(x, x + 20),
        "lax.rem.int": lambda x: lax.rem(x, x - 20),
        "lax.pow.int": lambda x: lax.pow(x.astype(jnp.float32) + 20, x),
    },
    I,
)
enter(
    {
        "lax.clz.u8": lax.clz,
        "lax.population_count.u8": lax.population_count,
        "lax.reduce_xor.u8": lambda x: lax.reduce(x, np.uint8(0), lax.bitwise_xor, [1]),
    },
    U,
)

# ---- complex

enter(
    {
        "lax.real": lax.real,
        "lax.imag": lax.imag,
        "lax.conj": lax.conj,
        "complex.abs": jnp.abs,
        "complex.angle": jnp.angle,
        "complex.exp": jnp.exp,
        "complex.mul": lambda z: z * z - z / (z + 3),
        "complex.dot": lambda z: z @ z.T,
        "complex.sum": lambda z: z.sum(1),
        "complex.sqrt": jnp.sqrt,
        "complex.cast": lambda z: z.astype(jnp.complex64),
        "complex.transpose": lambda z: z.T[::-1],
        "complex.where": lambda z: jnp.where(z.real > 0, z, 0),
        "complex.sort": lambda z: jnp.sort(z, axis=1),
        "complex.cumsum": lambda z: jnp.cumsum(z, axis=0),
        "complex.prod": lambda z: z.prod(0),
        "complex.scatter": lambda z: z.at[0].add(1j),
        "complex.sign": jnp.sign,
        "complex.log": jnp.log,
        "complex.tanh": jnp.tanh,
        "complex.power": lambda z: z**3,
        "complex.gather": lambda z: z[jnp.array([0, 2, 1])],
        "complex.eq": lambda z: z == z[::-1],
        "complex.scan": lambda z: lax.scan(
            lambda c, r: (c * r, c + r), jnp.ones(4, jnp.complex64), z
        ),
    },
    C,
)
enter(
    {
        "lax.complex": lambda x: lax.complex(x, -x),
        "complex.out": lambda x: jnp.exp(1j * x),
        "fft.fft": lambda x: jnp.fft.fft(x),
        "fft.ifft": lambda x: jnp.fft.ifft(x),
        "fft.rfft": lambda x: jnp.fft.rfft(x),
        "fft.irfft": lambda x: jnp.fft.irfft(x, n=7),
        "fft.fft2": lambda x: jnp.fft.fft2(x),
        "fft.rfftn": lambda x: jnp.fft.rfftn(x),
        "fft.irfftn": lambda x: jnp.fft.irfftn(jnp.fft.rfftn(x)),
        "fft.hfft": lambda x: jnp.fft.hfft(x),
        "fft.grad": jax.grad(lambda x: jnp.abs(jnp.fft.rfft(x)).sum()),
        "fft.vmap": jax.vmap(lambda r: jnp.fft.fftshift(jnp.fft.fft(r)).real),
        "fft.dct": lambda x: jsp.fft.dct(x),
    },
    X,
)

# ---- linear algebra

enter(
    {
        "linalg.cholesky": jnp.linalg.cholesky,
        "linalg.inv": jnp.linalg.inv,
        "linalg.det": jnp.linalg.det,
        "linalg.slogdet": jnp.linalg.slogdet,
        "linalg.eigvalsh": jnp.linalg.eigvalsh,
        "linalg.eigh": lambda x: jnp.linalg.eigh(x)[0],
        "linalg.svdvals": lambda x: jnp.linalg.svd(x, compute_uv=False),
        "linalg.svd": lambda x: (lambda u, s, v: (u * s[:, None]) @ v)(*jnp.linalg.svd(x)),
        "linalg.qr": lambda x: jnp.abs(jnp.linalg.qr(x)[1]),
        "linalg.qr.r": lambda x: jnp.abs(jnp.linalg.qr(x, mode="r")),
        "linalg.solve": lambda x: jnp.linalg.solve(x, x[..., :2]),
        "linalg.lstsq": lambda x: jnp.linalg.lstsq(x[0], x[0, :, :1])[0],
        "linalg.pinv": jnp.linalg.pinv,
        "linalg.matrix_rank": jnp.linalg.matrix_rank,
        "linalg.matrix_power": lambda x: jnp.linalg.matrix_power(x / 9, 5),
        "linalg.norm": lambda x: jnp.linalg.norm(x, axis=(1, 2)),
        "linalg.norm.nuc": lambda x: jnp.linalg.norm(x[0], "nuc"),
        "linalg.cond": lambda x: jnp.linalg.cond(x),
        "linalg.eig": lambda x: jnp.sort(jnp.abs(jnp.linalg.eig(x[0])[0])),
        "linalg.eigvals": lambda x: jnp.sort(jnp.abs(jnp.linalg.eigvals(x))),
        "linalg.expm": lambda x: jsp.linalg.expm(x / 9),
        "linalg.lu": lambda x: jsp.linalg.lu(x[0]),
        "linalg.lu_factor": lambda x: jsp.linalg.lu_factor(x),
        "linalg.lu_solve": lambda x: jsp.linalg.lu_solve(jsp.linalg.lu_factor(x[0]), x[1]),
        "linalg.cho_solve": lambda x: jsp.linalg.cho_solve((jnp.linalg.cholesky(x[0]), True), x[1]),
        "linalg.solve_triangular": lambda x: jsp.linalg.solve_triangular(
            jnp.tril(x[0]), x[1], lower=True
        ),
        "linalg.sqrtm": lambda x: jsp.linalg.sqrtm(x[0]).real,
        "linalg.schur": lambda x: jnp.abs(jsp.linalg.schur(x[0])[0]),
        "linalg.hessenberg": lambda x: jnp.abs(jsp.linalg.hessenberg(x[0])),
        "linalg.block_diag": lambda x: jsp.linalg.block_diag(x[0], x[1]),
        "linalg.polar": lambda x: jsp.linalg.polar(x[0])[0],
        "linalg.toeplitz": lambda x: jsp.linalg.toeplitz(x[0, 0]),
        "linalg.multi_dot": lambda x: jnp.linalg.multi_dot([x[0], x[1], x[0]]),
        "linalg.grad_cholesky": jax.grad(lambda x: jnp.linalg.cholesky(x).sum()),
        "linalg.grad_solve": jax.grad(lambda x: jnp.linalg.solve(x, x[..., :2]).sum()),
        "linalg.grad_inv": jax.grad(lambda x: jnp.linalg.inv(x).sum()),
        "linalg.grad_slogdet": jax.grad(lambda x: jnp.linalg.slogdet(x)[1].sum()),
        "linalg.grad_eigh": jax.grad(lambda x: jnp.linalg.eigvalsh(x).sum()),
        "linalg.vmap_solve": lambda x: jax.vmap(lambda a: jnp.linalg.solve(a, a[0]))(x),
        "lax.triangular_solve": lambda x: lax.linalg.triangular_solve(
            x, x, left_side=False, lower=True, transpose_a=True
        ),
        "lax.cholesky_update": lambda x: lax.linalg.cholesky_update(
            jnp.linalg.cholesky(x[0]).T, x[0, 0]
        ),
        "lax.symmetric_product": lambda x: lax.linalg.symmetric_product(x, x),
        "lax.tridiagonal": lambda x: jnp.abs(lax.linalg.tridiagonal(x[0])[1]),
        "lax.householder_product": lambda x: lax.linalg.householder_product(x[0], x[0, 0]),
        "lax.tridiagonal_solve": lambda x: lax.linalg.tridiagonal_solve(
            x[0, 0] * 0.1, x[0, 1] + 9, x[0, 2] * 0.1, x[1]
        ),
        "lax.lu_pivots_to_permutation": lambda x: lax.linalg.lu_pivots_to_permutation(
            jnp.array([2, 1, 3, 3], jnp.int32), 5
        ),
        "linalg.scan_cholesky": lambda x: lax.scan(
            lambda c, r: (c + jnp.linalg.cholesky(r), c), jnp.zeros((4, 4)), x
        ),
        "linalg.cond_inv": lambda x: lax.cond(x.sum() > 0, jnp.linalg.inv, lambda y: y, x),
        "linalg.while_solve": lambda x: lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.linalg.solve(x[0], c[1])), (0, x[1])
        )[1],
    },
    P,
)

# ---- special functions

enter(
    {
        f"special.{n}": getattr(jsp.special, n)
        for n in (
            "digamma",
            "entr",
            "erf",
            "erfc",
            "erfinv",
            "expit",
            "exp1",
            "expi",
            "gammaln",
            "gamma",
            "i0",
            "i0e",
            "i1",
            "i1e",
            "log_ndtr",
            "logit",
            "ndtr",
            "ndtri",
            "spence",
            "logsumexp",
            "softmax",
            "log_softmax",
            "factorial",
            "fresnel",
            "sici",
            "bernoulli",
            "zeta",
        )
        if hasattr(jsp.special, n) and n not in ("bernoulli", "zeta")
    },
    X,
)
enter(
    {
        f"special.{n}": getattr(jsp.special, n)
        for n in (
            "betaln",
            "beta",
            "gammainc",
            "gammaincc",
            "kl_div",
            "rel_entr",
            "xlog1py",
            "xlogy",
            "poch",
        )
    },
    X,
    X * 2,
)
enter(
    {
        "special.betainc": lambda x: jsp.special.betainc(x, x, x),
        "special.polygamma": lambda x: jsp.special.polygamma(2, x),
        "special.zeta": lambda x: jsp.special.zeta(x + 2, x),
        "special.multigammaln": lambda x: jsp.special.multigammaln(x + 3, 2),
        "special.hyp1f1": lambda x: jsp.special.hyp1f1(x, x, x),
        "special.lpmn": lambda x: jsp.special.bernoulli(4) * x[0, 0],
        "special.bessel_jn": lambda x: jsp.special.bessel_jn(x[0], v=3, n_iter=20),
        "special.sph_harm": lambda x: (
            jsp.special.sph_harm_y(
                jnp.array([1, 2]), jnp.array([0, 1]), x[0, :2], x[1, :2], n_max=2
            ).real
        ),
        "special.grad_gammainc": jax.grad(lambda x: jsp.special.gammainc(x, x * 2).sum()),
        "special.grad_betainc": jax.grad(lambda x: jsp.special.betainc(2.0, 3.0, x).sum()),
        "special.grad_i1": jax.grad(lambda x: jsp.special.i1(x).sum()),
        "special.grad_zeta": jax.grad(lambda x: jsp.special.zeta(2.5, x).sum()),
        "special.grad_digamma": jax.grad(lambda x: jsp.special.digamma(x).sum()),
        "stats.norm": lambda x: jsp.stats.norm.logpdf(x),
        "stats.t": lambda x: jsp.stats.t.logpdf(x, 3),
        "stats.gamma": lambda x: jsp.stats.gamma.cdf(x, 2.0),
        "stats.beta": lambda x: jsp.stats.beta.cdf(x, 2.0, 3.0),
        "stats.poisson": lambda x: jsp.stats.poisson.cdf(x * 5, 2.0),
    },
    X,
)
