"""Inputs that reveal wrong rewrites: equal elements, zeros of both signs, infinities, nan."""

from __future__ import annotations

import zlib

import numpy as np

from stack.ir.data import round_bf16
from stack.ir.node import Func
from stack.ir.types import BF16, TensorType
from stack.rewrite.check import random_array, random_inputs

KINDS = ("plain", "ties", "infinities", "nan")
TIES = (-1.5, -0.0, 0.0, 0.5, 1.0)
ONE_IN = 16  # elements that are special
MOST = 2


def edge_inputs(func: Func, kind: str, seed: int = 0) -> list[np.ndarray]:
    """One array for each parameter of a function without size symbols.

    "plain": as `random_inputs`. "ties": few distinct values, including zeros of both signs.
    "infinities" and "nan": one element in 16, at most two in an array, so that most of a result
    stays finite. Integers and bools are as in "plain", because they may be indices.
    """
    if kind == "plain":
        return random_inputs(func, seed)
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])
    return [_edge_array(p.tensor, kind, rng) for p in func.params]


def _edge_array(type_: TensorType, kind: str, rng: np.random.Generator) -> np.ndarray:
    array = random_array(type_, rng)
    if not type_.dtype.is_float:
        return array
    if kind == "ties":
        array = np.asarray(rng.choice(TIES, array.shape), dtype=array.dtype)
        return round_bf16(array) if type_.dtype is BF16 else array
    array = np.array(array)
    count = min(MOST, -(-array.size // ONE_IN))
    places = rng.permutation(array.size)[:count]
    values = (np.nan,) if kind == "nan" else (np.inf, -np.inf)
    for number, place in enumerate(places):
        array.reshape(-1)[place] = values[number % len(values)]
    return array
