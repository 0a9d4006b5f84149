"""New kinds of kernels: a file for a GPU, and a tiler with its line for a kind of groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_cases import product_of
from kernel_cases import group_of, program

from stack.backends.cuda.printer import print_kernel as print_cuda
from stack.backends.triton.printer import print_kernel as print_triton
from stack.ir import Builder, Node
from stack.passes.gpu_layout.lower import lower_kernel
from stack.passes.policies import lowerings as policies
from stack.passes.policies.rows import RowLowering
from stack.rewrite import Pipeline
from stack.target import Gpu, as_gpu, load
from stack.target.files import FOLDER

FEW = 24  # processors of the new GPU


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A GPU of few processors without warpgroups, as a file."""
    text = (FOLDER / "sm_90.toml").read_text(encoding="utf-8")
    lines = [
        f'processors = {{ value = {FEW}, source = "datasheet" }}' if "processors =" in line
        else 'features = ["async_copy"]' if "features =" in line
        else 'name = "small"' if line.startswith("name =")
        else line
        for line in text.splitlines()
    ]  # fmt: skip
    path = tmp_path / "small.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("loops", "dtype"), [("blocks", "bf16"), ("warps", "bf16"), ("warps", "f32")]
)
def test_a_target_is_one_file(machine: str, loops: str, dtype: str) -> None:
    func = program(product_of("m k, k n -> m n", (256, 256), (256, 256), dtype))
    spec = f"schedule{{loops={loops}}},blocks" + (",distribute_gpu" if loops == "warps" else "")
    small, large = (Pipeline(spec).run(func, target=load(name)) for name in (machine, "sm_90"))
    notes = " ".join(note for record in small.records for note in record.notes)
    assert f"{FEW} processors" in notes
    assert str(small.func) != str(large.func)
    assert "warpgroup_mma" not in str(small.func)


class OneWarp(RowLowering):
    """Kernels whose programs have one warp."""

    def kernel(self) -> Node:
        made = super().kernel()
        return Node("kernel", made.args, {**made.attrs, "warps": 1}, made.type, made.blocks)


def test_a_kind_of_kernels_is_a_class_and_its_line(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes(group: Node, gpu: Gpu) -> bool:
        return any(n.op == "exp" for n in group.blocks[0].nodes)

    def grown(b: Builder, x: Node) -> Node:
        return b.exp(x)

    def turned(b: Builder, x: Node) -> Node:
        return b.neg(x)

    monkeypatch.setattr(policies, "ON_GPU", [(takes, OneWarp), *policies.ON_GPU])
    x = rng.standard_normal((9, 40), dtype=np.float32)
    for build in (grown, turned):
        func = program(group_of(build, [("f32", 9, 40)]))
        made = Pipeline("schedule,blocks").run(func).func
        (kernel,) = (n for n in made.nodes if n.op == "kernel")
        assert (kernel.attrs["warps"] == 1) == (build is grown)
        np.testing.assert_allclose(made.interpret(x), func.interpret(x), rtol=1e-6)
        loops = lower_kernel(kernel, as_gpu(None))
        assert print_cuda(loops, "k").warps == int(kernel.attrs["warps"])
        assert print_triton(kernel, "k").text
