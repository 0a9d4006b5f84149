"""Products whose panels another kernel packs give the bits of those that pack them themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_amx import emulated
from kernel_cases import tile_group

from stack.backends.mlir import jit
from stack.backends.mlir.printer import print_kernel
from stack.ir import Builder, Node, param, tensor
from stack.ir.axes import parse_rule
from stack.ir.data import encode, storage_dtype
from stack.ir.node import Block
from stack.ir.space import einsum_text
from stack.ir.types import DTYPES
from stack.passes.distribute import distribute_kernel
from stack.passes.tiling.single_ops import alone
from stack.target import Cpu, as_cpu, cpu_at_hand, load

pytest.importorskip("torch_mlir")

Shape = tuple[int, ...]
NATIVE = replace(as_cpu(load("avx512")), arch="native")
TILES = replace(as_cpu(load("amx")), arch="native")
PLAIN = replace(as_cpu(load("avx2")), arch="native")
NEEDS = {"bf16": "avx512bf16", "i8": "avx512vnni"}

# rows, lanes and depths with and without a rest; both orders of memory; several contracted axes;
# an axis that is summed in blocks; groups of rows
CASES: list[tuple[str, Shape, Shape]] = [
    ("m k, n k -> m n", (33, 128), (71, 128)),
    ("b s h d, h d n -> b s n", (2, 40, 3, 64), (3, 64, 130)),
    ("m k, n k -> m n", (530, 3072), (100, 3072)),
]


def run(kernel: Node, cpu: Cpu, *arrays: np.ndarray) -> None:
    text = print_kernel(kernel, "k", target=cpu)
    native = jit.build(emulated(text) if cpu is TILES else text, ["k"])["k"]
    native(*(a.ctypes.data for a in arrays))


def check(rule: str, first: Shape, second: Shape, dtype: str, cpu: Cpu) -> None:
    """Both ways to the same bits, outside of what either leaves alone."""
    rng = np.random.default_rng(0)
    if dtype == "i8":
        held = [rng.integers(-128, 128, size=s).astype(np.int8) for s in (first, second)]
    else:
        held = [rng.normal(size=s).astype(np.float32) for s in (first, second)]
        held[1].flat[0], held[1].flat[-1] = np.inf, np.nan
        held = [encode(v, DTYPES[dtype]) for v in held]
    made = "i32" if dtype == "i8" else dtype
    shape = np.einsum(einsum_text(parse_rule(rule)), *(np.empty(s) for s in (first, second))).shape
    operands = [param(f"x{i}", tensor(dtype, *v.shape)) for i, v in enumerate(held)]
    dot = Builder().dot(*operands, rule=rule, type=tensor(made, *shape))
    kernel = tile_group(alone(dot), cpu)
    want, found = (np.full(shape, 1, storage_dtype(DTYPES[made])) for _ in range(2))
    run(distribute_kernel(kernel), cpu, *held, want)
    group = alone(dot)
    weight = group.args[1]
    call = Builder().call(weight, name="w", once=True, blocks=(Block((weight,), (weight,)),))
    product = tile_group(group.rebuilt((group.args[0], call)), cpu)
    (packing,) = [a for a in product.args if a not in kernel.args]
    panels = np.empty(packing.shape, storage_dtype(packing.dtype))
    assert packing.args == (call,)
    run(packing, cpu, held[1], panels)
    run(product, cpu, held[0], panels, found)
    np.testing.assert_array_equal(found, want)


@pytest.mark.each
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
@pytest.mark.parametrize(("rule", "first", "second"), CASES)
def test_vectors(rule: str, first: Shape, second: Shape, dtype: str) -> None:
    has_dots = NEEDS.get(dtype, "avx512f") in cpu_at_hand().features
    if not has_dots and dtype == "bf16":
        pytest.skip("this CPU has no vdpbf16ps")
    check(rule, first, second, dtype, NATIVE if has_dots else PLAIN)


@pytest.mark.parametrize("dtype", ["bf16", "i8"])
@pytest.mark.parametrize(("rule", "first", "second"), CASES[:2])
def test_tiles(rule: str, first: Shape, second: Shape, dtype: str) -> None:
    if dtype == "bf16" and NEEDS[dtype] not in cpu_at_hand().features:
        pytest.skip("this CPU does not round to bf16 as that with tiles")
    check(rule, first, second, dtype, TILES)
