"""Operands of products whose rows are no whole words: when they are copied, and what reads them."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Block, Builder, Func, Node, param, tensor, verify
from stack.ir.data import round_bf16
from stack.rewrite import Pipeline

RULES = {"k": "m k, k n -> m n", "m": "k m, k n -> m n", "n": "m k, k n -> m n"}


def product(axis: str, size: int, dtype: str = "bf16", **sizes: int) -> Func:
    """A product whose `axis` has some size, as the last one of an operand."""
    m, n, k = (size if a == axis else sizes.get(a, 512) for a in "mnk")
    x = param("x", tensor(dtype, *((k, m) if axis == "m" else (m, k))))
    w = param("w", tensor(dtype, k, n))
    b = Builder()
    return b.func("main", [x, w], [b.dot(x, w, rule=RULES[axis])])


def all_nodes(block: Block) -> list[Node]:
    """The nodes of a block and of what it holds."""
    inner = [m for n in block.nodes for b in n.blocks for m in all_nodes(b)]
    return [*block.nodes, *inner]


def padded(func: Func) -> Func:
    found = Pipeline("pad_rows").run(func).func
    verify(found)
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize("axis", ["k", "m", "n"])
def test_a_ragged_operand_is_copied_to_whole_words(axis: str, rng: np.random.Generator) -> None:
    func = product(axis, 515)
    found = padded(func)
    copy, group = found.nodes
    assert [n.op for n in copy.blocks[0].nodes if n.op != "const"] == ["pad"]
    assert copy.shape[-1] == 520
    assert group.attrs["padded"] == (1 if axis == "n" else 0,)
    given = [round_bf16(rng.standard_normal(p.shape).astype(np.float32)) for p in func.params]
    wanted = func.interpret(*given)
    np.testing.assert_array_equal(found.interpret(*given), wanted)
    kernels = Pipeline("blocks").run(found).func
    reader = kernels.nodes[1].blocks[0]
    loads = [n for n in all_nodes(reader) if n.op == "load"]
    # in blocks, with no mask for single elements
    assert len(loads) == 2
    assert all(len(n.args) == 1 + n.args[0].tensor.rank for n in loads)
    np.testing.assert_allclose(kernels.interpret(*given), wanted, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("func", [
    product("k", 520), product("k", 67, m=16, n=16), product("k", 515, dtype="f32"),
], ids=["whole words", "little work", "f32 is copied by the element"])  # fmt: skip
def test_what_gains_nothing_stays(func: Func) -> None:
    assert padded(func) is func


def test_readers_share_one_copy_and_keep_what_follows(rng: np.random.Generator) -> None:
    x, w, v = (param(n, tensor("bf16", *s)) for n, s in
               zip("xwv", [(256, 515), (515, 256), (256, 384)], strict=True))  # fmt: skip
    b = Builder()
    first = b.add(b.dot(x, w, rule="m k, k n -> m n"), 1.0)
    func = b.func("main", [x, w, v], [first, b.dot(x, v, rule="k m, k n -> m n")])
    found = padded(Pipeline("fuse").run(func).func)
    pads = [n for n in found.nodes if n.attrs.get("name") == "pad"]
    readers = [n for n in found.nodes if "padded" in n.attrs]
    assert len(pads) == 1
    assert len(readers) == 2 and all(n.args[0] is pads[0] for n in readers)
    given = [round_bf16(rng.standard_normal(p.shape).astype(np.float32)) for p in func.params]
    wanted = func.interpret(*given)
    kernels = Pipeline("schedule,blocks").run(found).func
    for got, want in zip(kernels.interpret(*given), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-1)


def test_a_library_reads_the_copy_in_place(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    from stack.backends.device.library import DeviceSpace, library_of

    found = padded(product("k", 515))
    (group,) = (n for n in found.nodes if "padded" in n.attrs)
    attrs = {**group.attrs, "kind": "library"}
    step = Node(group.op, group.args, attrs, group.type, group.blocks)
    library = library_of(step, DeviceSpace(torch.device("cpu")))
    x, w = (torch.randn(*map(int, a.shape)) for a in group.args)
    out = torch.empty(512, 512)
    assert library.fill is not None
    library.fill([x, w], [out])
    assert library.name == "torch.matmul"
    torch.testing.assert_close(out, x[:, :515] @ w)
