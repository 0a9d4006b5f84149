"""Arguments of operators on packed weights, of mixtures of experts and low-rank additions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], list[np.ndarray]]


def drawn(*parts: tuple[int, ...] | Callable[[np.random.Generator], np.ndarray]) -> Draw:
    """Normal floats for a shape, or what a function draws."""
    return lambda rng: [
        np.asarray(p(rng) if callable(p) else rng.standard_normal(p)) for p in parts
    ]


def integers(shape: tuple[int, ...], dtype: Any = np.uint8) -> Any:
    """All that an integer type has."""
    info = np.iinfo(dtype)
    return lambda rng: rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def below(shape: tuple[int, ...], high: int, low: int = 0, dtype: Any = np.uint8) -> Any:
    return lambda rng: rng.integers(low, high, shape, dtype)


def above_zero(shape: tuple[int, ...]) -> Any:
    return lambda rng: rng.uniform(0.5, 1.5, shape)


def finite(shape: tuple[int, ...]) -> Any:
    """Codes of E4M3 and E5M2 that are numbers, none of them large."""
    return lambda rng: (
        rng.integers(0, 72, shape, np.uint8) | rng.integers(0, 2, shape, np.uint8) << 7
    )


def pairs(shape: tuple[int, ...]) -> Any:
    """Two of four positions, in order."""
    held = np.array([a | b << 2 for b in range(4) for a in range(b)], np.uint8)
    return lambda rng: held[rng.integers(0, len(held), shape)]


def blocks(rows: int, count: int, size: int, halves: tuple[int, ...]) -> Any:
    """Random bytes, but for the scales, which are float16 of about 1 / 64."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        made = rng.integers(0, 256, (rows, count, size), np.uint8)
        for place in halves:
            scale = rng.uniform(0.01, 0.02, (rows, count, 1)).astype(np.float16)
            made[..., place : place + 2] = scale.view(np.uint8)
        return made.reshape(rows, -1)

    return draw


def between_steps(rng: np.random.Generator) -> np.ndarray:
    """Numbers in the middle of those that round to one code of 8 bits, for steps of 1 / 16.

    A derivative by differences says nothing where rounding steps. Rows have a code of 127, too.
    """
    codes = rng.integers(-100, 100, (2, 3, 6))
    codes[..., 2] = 127
    return codes / 16


Row = tuple[str, Any, Draw, dict[str, Any], int]


def quantized(name: str, draw: Draw, order: int = 2, **attributes: Any) -> Row:
    shapes = tuple(a.shape for a in draw(np.random.default_rng(0)))
    return (name if "." in name else f"qgemm.{name}"), shapes, draw, attributes, order


def words(*shape: int) -> Any:
    return integers(shape, np.int32)


E5M2, E2M1, E3M2 = {"format": "e5m2"}, {"format": "e2m1"}, {"format": "e3m2"}
gates = lambda rng: np.array([[0.7, 0, 0.3], [0, 0.4, 0.6], [0, 1.0, 0.2], [0, 0.5, 0.5]])
rows = lambda rng: np.array([0, 1, 2, 3, 0, 1, 2, -1], np.int32)
sizes = lambda rng: np.array([1, 3, 3], np.int32)
uneven = lambda rng: np.array([0, 33, 5], np.int32)
room = lambda count: lambda rng: np.full(count, -1, np.int32)
step = lambda rng: np.float64(1 / 16)
signed = integers((5, 6), np.int8)
QUANTIZED = (
    quantized("w8a8_static", drawn(between_steps, signed, step, above_zero((5,)))),
    quantized("w8a8_dynamic", drawn(between_steps, signed, above_zero((5,)))),
    quantized("fp8", drawn(finite((2, 3, 6)), finite((5, 6)), (2, 3), (5,))),
    quantized("fp8", drawn(finite((3, 6)), finite((5, 6)), (3,), (5,)), **E5M2),
    quantized("fp8_tensor", drawn(finite((2, 3, 6)), finite((5, 6)), (), ())),
    quantized("fp8_block", drawn(finite((2, 3, 9)), finite((6, 9)), (2, 3, 3), (2, 3)), block=4),
    quantized("fp8_block", drawn(finite((20, 256)), finite((132, 256)), (20, 2), (2, 2))),
    quantized("fp8", drawn(finite((20, 144)), finite((132, 144)), (20,), (132,))),
    quantized("fp8_tensor", drawn(finite((20, 144)), finite((132, 144)), (), ())),
    quantized("w4a16_awq", drawn((3, 8), words(8, 2), words(2, 2), (2, 16))),
    quantized(
        "w4a16_gptq",
        drawn((3, 16), words(2, 8), words(2, 1), (2, 8), below((16,), 2, dtype=np.int32)),
    ),
    quantized("nf4", drawn((2, 3, 8), integers((5, 4)), (5, 2))),
    quantized("sparse24", drawn((3, 8), (5, 4), pairs((5, 2)))),
    quantized("q8_0", drawn((3, 64), blocks(5, 2, 34, (0,)))),
    quantized("q4_k", drawn((3, 256), blocks(2, 1, 144, (0, 2)))),
    quantized("q6_k", drawn((3, 256), blocks(2, 1, 210, (208,)))),
    quantized("mx", drawn((3, 64), integers((4, 32)), below((4, 2), 130, 124)), **E2M1),
    quantized("mx", drawn((3, 32), below((4, 32), 64), below((4, 1), 130, 124)), **E3M2),
    quantized("nvfp4", drawn((3, 32), integers((4, 16)), finite((4, 2)), above_zero(()))),
    quantized("moe.top_k", drawn((2, 5, 4)), top=2),
    quantized("moe.top_k", drawn((5, 4)), top=3, normalize=False),
    quantized("moe.plan", drawn(gates, room(8))),
    quantized("moe.plan", drawn(gates, room(7)), capacity=2),
    quantized("moe.plan", drawn(gates, room(5))),
    quantized("moe.dispatch", drawn((4, 3), rows)),
    quantized("moe.combine", drawn((8, 3), gates, rows, sizes)),
    quantized("moe.grouped_gemm", drawn((8, 4), (3, 5, 4), sizes), order=1),
    quantized("moe.grouped_gemm", drawn((40, 32), (3, 24, 32), uneven)),
    quantized(
        "moe.grouped_gemm_fp8",
        drawn(finite((8, 16)), finite((3, 8, 16)), (8,), (3, 8), sizes),
        order=1,
    ),
    quantized("lora.linear", drawn((2, 3, 4), (5, 4), (2, 4), (5, 2)), scale=0.5),
    quantized(
        "lora.multi",
        drawn((4, 3), (5, 3), (3, 2, 3), (3, 5, 2), lambda _: np.array([2, -1, 0, 2], np.int32)),
        scale=2.0,
    ),
    quantized("lora.qlora", drawn((2, 3, 8), integers((5, 4)), (5, 2), (2, 8), (5, 2))),
)
