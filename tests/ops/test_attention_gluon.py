"""Gluon kernels of attention: code for Hopper without a GPU, values on one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from interpreted_process import interpreted

pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

import hopper
import torch

from stack.backends.device.tools import run_tool
from stack.hosted import find
from stack.hosted.nodes import custom
from stack.ir.builder import Builder, param
from stack.ir.types import DTYPES, TensorType
from stack.ops.attention import flash_backward_gluon, flash_gluon, flash_triton, mla_gluon
from stack.ops.attention.ring_gluon import lines_of, tiles_of

needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="its code is for Hopper",
)


def tiles(rows: int, width: int) -> str:
    made = tiles_of(torch.zeros(1, rows, width, dtype=torch.bfloat16), rows)
    return f"tensordesc<bf16{made.block_shape},{made.layout!r}>"


def compiled(
    kernel: Any, descriptors: dict[str, str], constants: dict[str, Any], warps: int = 4
) -> str:
    """PTX, in which no register is spilled to memory, and memory is brought by the copy engine.

    Where ptxas cannot keep products under way it waits for each: machine code has more waits then.
    """
    memory = dict.fromkeys((n for n in kernel.arg_names if n.endswith("_ptr")), "*fp32")
    types = {**descriptors, **memory, "scale": "fp32"}
    made = hopper.compiled(kernel, types, constants, memory, num_warps=warps)
    ptx = made.asm["ptx"]
    assert "wgmma.mma_async" in ptx
    assert "cp.async.bulk.tensor.3d" in ptx
    assert "ld.local" not in ptx
    sass = run_tool("cuobjdump", made.asm["cubin"], "-sass")
    if "HGMMA" in sass:
        assert sass.count("WARPGROUP.DEPBAR") == ptx.count("wgmma.wait_group")
    return ptx


@pytest.mark.parametrize(("width", "causal"), [(64, True), (128, False)])
def test_forward_gives_registers_to_those_who_compute(width: int, causal: bool) -> None:
    rows = {"q_desc": 64, "k_desc": 128, "v_desc": 128, "o_desc": 64}
    descriptors = {n: tiles(r, width) for n, r in rows.items()}
    groups = 3 if width == 64 else 2
    constants = {"CAUSAL": causal, "PAIRS": False, "GROUPS": groups}
    constants["STAGES"] = flash_gluon.STAGES[width]
    ptx = compiled(flash_gluon.attention_kernel, descriptors, constants)
    for change in ("inc", "dec"):
        assert f"setmaxnreg.{change}" in ptx


@pytest.mark.parametrize(("width", "causal"), [(64, False), (128, True)])
def test_backward_adds_16_bytes_at_once(width: int, causal: bool) -> None:
    rows = {"q_desc": 64, "told_desc": 64}
    rows |= dict.fromkeys(("k_desc", "v_desc", "dk_desc", "dv_desc"), 128)
    descriptors = {n: tiles(r, width) for n, r in rows.items()}
    lines = lines_of(torch.zeros(1, 2, 64), 64)
    descriptors["lines_desc"] = f"tensordesc<fp32{lines.block_shape},{lines.layout!r}>"
    constants = {"CAUSAL": causal, "RAGGED": False, "STAGES": flash_backward_gluon.STAGES}
    ptx = compiled(flash_backward_gluon.backward_kernel, descriptors, constants)
    assert "add.v4.f32" in ptx


def test_latent_keys_are_keys_and_values_of_64_heads() -> None:
    names = {"q_desc": 512, "q_rope_desc": 64, "latent_desc": 512, "rope_desc": 64}
    descriptors = {n: tiles(64, width) for n, width in names.items()}
    ptx = compiled(mla_gluon.split_kernel, descriptors, {"SPLITS": 4, "STAGES": 2}, warps=8)
    assert "m64n256k16" in ptx  # half of the features for each group of warps


def test_sums_in_the_order_of_registers_become_rows() -> None:
    found = interpreted(Path(__file__).with_name("gluon_helpers.py"))
    assert len(found) == 3
    assert max(found.values()) < 1e-5


BF16 = DTYPES["bf16"]


@pytest.mark.parametrize(
    ("name", "shapes", "kernel"),
    [
        ("attention.attention", [(1, 4, 4096, 128)] * 3, "flash_gluon"),
        ("attention.with_lse", [(1, 4, 128, 64)] * 3, "flash_gluon"),
        ("attention.attention", [(1, 4, 100, 64)] * 3, "flash_triton"),
        ("attention.mla_absorbed", [(2, 16, 1, 512), (2, 16, 1, 64), (2, 90, 512), (2, 90, 64)],
         "mla_gluon"),
        ("attention.mla_absorbed", [(2, 16, 1, 256), (2, 16, 1, 64), (2, 90, 256), (2, 90, 64)],
         "mla_triton"),
    ],
)  # fmt: skip
def test_full_tiles_are_for_gluon(name: str, shapes: list[tuple[int, ...]], kernel: str) -> None:
    made = find(name)
    types = [TensorType(BF16, s) for s in shapes]
    chosen = made.kernel_for("cuda", types, made.read({"scale": 0.1} if "mla" in name else {}))
    assert chosen is not None
    assert f".{kernel}:" in str(chosen.run)


@pytest.mark.parametrize(("length", "kernel"), [(256, "gluon"), (100, "triton")])
def test_gradients_have_code_for_what_the_forward_pass_gives(length: int, kernel: str) -> None:
    forward = find("attention.with_lse")
    q = TensorType(BF16, (1, 4, length, 64))
    at = forward.read({})
    out, lse = (n.tensor for n in custom(Builder(), forward, [param(n, q) for n in "qkv"], {}))
    assert lse.dtype.name == "f32"
    assert forward.gradient is not None
    chosen = forward.gradient.kernel_for("cuda", [q, q, q, out, lse, out, lse], at)
    assert chosen is not None
    assert f".flash_backward_{kernel}:" in str(chosen.run)
    wide = [TensorType(DTYPES["f32"], q.shape)] * 3
    assert "16-bit" in chosen.why_not([*wide, out, lse, out, lse], at)


@pytest.mark.gpu
@needs_hopper
def test_torch_takes_gradients_by_hand() -> None:
    args = [draw(1, 2, 256, 64).requires_grad_() for _ in range(3)]
    told = draw(1, 2, 256, 64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        out, _ = find("attention.with_lse")(*args, causal=True)
        found = torch.autograd.grad(out, args, told)
    assert {"attention_kernel", "backward_kernel"} <= {e.key for e in seen.key_averages()}
    exact = [a.detach().double().requires_grad_() for a in args]
    wanted = torch.autograd.grad(flash_triton.reference(*exact, True), exact, told.double())
    assert max(error(a, b) for a, b in zip(found, wanted, strict=True)) < 1e-2


# ---- values


def draw(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def error(found: Any, exact: Any) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("heads", "groups", "length", "width"),
    [(2, 2, 128, 64), (4, 2, 1000, 128), (2, 1, 129, 64), (16, 16, 256, 128), (3, 3, 2048, 64),
     (66, 33, 200, 64), (66, 66, 300, 128)],  # as many pairs of tiles as processors, or twice
)  # fmt: skip
def test_values_and_gradients(
    heads: int, groups: int, length: int, width: int, causal: bool
) -> None:
    torch.manual_seed(length)
    q, told = draw(2, heads, length, width), draw(2, heads, length, width)
    k, v = draw(2, groups, length, width), draw(2, groups, length, width)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    expected = flash_triton.reference(*exact, causal)
    (expected * told).sum().backward()
    out, lse = flash_gluon.attention_with_lse(q, k, v, causal)
    assert error(out, expected) < 1e-2
    assert error(lse, flash_triton.attention_with_lse(q, k, v, causal)[1]) < 1e-4
    nothing = torch.zeros_like(lse)
    found = flash_backward_gluon.gradients(q, k, v, out, lse, told, nothing, causal)
    assert max(error(a, b.grad) for a, b in zip(found, exact, strict=True)) < 1e-2


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize(("batch", "heads", "keys"), [(1, 128, 8192), (3, 100, 1000), (2, 16, 77)])
def test_latent_values(batch: int, heads: int, keys: int) -> None:
    torch.manual_seed(keys)
    q, q_rope = draw(batch, heads, 1, 512) / 8, draw(batch, heads, 1, 64)
    latent, rope = draw(batch, keys, 512), draw(batch, keys, 64)
    scale = 1 / math.sqrt(192)
    out = mla_gluon.absorbed(q, q_rope, latent, rope, scale=scale)
    queries = torch.cat((q, q_rope), -1)[:, :, 0].double()
    scores = queries @ torch.cat((latent, rope), -1).double().mT * scale
    assert error(out[:, :, 0], torch.softmax(scores, -1) @ latent.double()) < 1e-2
