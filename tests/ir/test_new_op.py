"""A new op needs only its record. Two toy ops show the features that follow from it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kernel_cases import group_of, program, tile_group
from perturbation import perturb

import stack.plugins as plugins
from stack.backends.cuda.printer import print_kernel as print_cuda
from stack.backends.mlir.printer import print_kernel as print_mlir
from stack.backends.triton.printer import print_kernel as print_triton
from stack.errors import RuleError
from stack.ir import Builder, Func, Node, ops, param, parse, tensor, verify
from stack.ir.axes import Rule, parse_rule
from stack.ir.elementwise_ops import EVERYWHERE, elementwise_rule
from stack.ir.movement_ops import MOVED
from stack.ir.ops import OPS, Applied, OpDef, Site
from stack.ir.region import Range
from stack.passes.distribute import distribute_kernel
from stack.rewrite import Pipeline
from stack.run.compile import compile_func, lower
from stack.run.record import Run
from stack.target import load

b = Builder()


def _diagonal_rule(node: Applied) -> Rule:
    return parse_rule("a a b -> a b")


def _diagonal(space: Any, node: Node, run: Any, x: Any) -> Any:
    return space.xp.moveaxis(space.xp.diagonal(x), -1, 0)


def _typed(site: Site) -> Any:
    return site.args[0].tensor.with_shape(site.shape())


def _root(b: Any, node: Node) -> Node:
    (x,) = node.args
    return b.mul(b.sign(x), b.exp(b.mul(b.log(b.abs(x)), 1 / 3)))


CBRT = OpDef(
    "cbrt", "cube root", "elementwise", _typed,
    rule=elementwise_rule, spelled=_root, flops=20, arity=1, levels=EVERYWHERE,
)  # fmt: skip
DIAGONAL = OpDef(
    "diagonal", "elements whose first two indices agree", "movement", _typed,
    rule=_diagonal_rule, evaluate=_diagonal, algebra=MOVED, arity=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def two_new_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "cbrt", CBRT)
    monkeypatch.setitem(OPS, "diagonal", DIAGONAL)


def test_type_text_and_errors_follow(rng: np.random.Generator) -> None:
    x = param("x", tensor("f32", 4, 4, 3))
    node = b.op("diagonal", (b.op("cbrt", (x,)),))
    assert node.shape == (4, 3)
    func = Func("f", b.block([x], [node]))
    verify(func)
    assert parse(str(func)) is func
    with pytest.raises(RuleError, match=r"axis 'a' of rule .* has two sizes: 4 and 5"):
        b.op("diagonal", (param("x", tensor("f32", 4, 5, 3)),))


def test_relation_follows(rng: np.random.Generator) -> None:
    x = param("x", tensor("f64", 4, 4, 3))
    node = b.op("diagonal", (x,))
    assert ops.footprint(node, (2, 1)) == [(Range(2, 3), Range(2, 3), Range(1, 2))]
    assert ops.pull(node, (3, 2)) == [(3, 3, 2)]
    array = rng.standard_normal((4, 4, 3))
    for op in ("diagonal", "cbrt"):
        for _ in range(20):
            perturb(b.op(op, (x,)), [array], 0, random.Random(1))


def test_it_is_spelled_with_ops_of_every_backend(rng: np.random.Generator) -> None:
    x = param("x", tensor("f64", 50))
    func = Func("f", b.block([x], [b.op("cbrt", (x,))]))
    array = rng.standard_normal(50)
    np.testing.assert_allclose(func.interpret(array), np.cbrt(array))
    made = Pipeline("decompose").run(func, check=True).func
    assert all(n.op != "cbrt" for n in made.nodes)
    np.testing.assert_allclose(made.interpret(array), np.cbrt(array), rtol=1e-6)


def test_kernels_read_through_it(rng: np.random.Generator) -> None:
    """A view joins a group, and the tilers read through its index map."""

    def build(b: Builder, x: Node, y: Node) -> Node:
        return b.exp(b.add(b.op("diagonal", (x,)), y))

    group = group_of(build, [("f32", 6, 6, 9), ("f32", 6, 9)])
    tiled = tile_group(group)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((6, 6, 9), (6, 9))]
    want = program(group).interpret(*arrays)
    for kernel in (tiled, distribute_kernel(tiled)):
        np.testing.assert_allclose(program(kernel).interpret(*arrays), want, rtol=1e-5)


def test_it_fuses(rng: np.random.Generator) -> None:
    x = param("x", tensor("f32", 6, 6, 9))
    node = b.exp(b.op("diagonal", (b.neg(x),)))
    made = Pipeline("fuse").run(Func("f", b.block([x], [node])), check=True).func
    assert [n.op for n in made.nodes] == ["fusion"]


# ---- on every backend, with no word in a pass or a printer


def _program() -> Func:
    x, y = param("x", tensor("f32", 6, 6, 9)), param("y", tensor("f32", 6, 9))
    picked = b.op("diagonal", (b.op("cbrt", (x,)),))
    scaled = b.mul(picked, b.exp(y))
    return Func("f", b.block([x, y], [b.reduce(scaled, kind="sum", axes=(1,)), b.neg(picked)]))


def test_it_runs_natively(rng: np.random.Generator) -> None:
    func = _program()
    arrays = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params]
    executable = compile_func(func, "mlir", options={"cache": False})
    assert {k.kind for k in executable.kernels} == {"generated"}
    x, y = arrays
    picked = np.cbrt(np.einsum("aab->ab", x.astype(np.float64)))
    found = executable.run(arrays)
    np.testing.assert_allclose(found[0], (picked * np.exp(y.astype(np.float64))).sum(1), rtol=1e-4)
    np.testing.assert_allclose(found[1], -picked, rtol=1e-5)


PRINTERS: dict[str, Any] = {"mlir": print_mlir, "triton": print_triton, "cuda": print_cuda}
TARGETS = {"mlir": "avx2", "triton": "sm_90", "cuda": "sm_90"}


@pytest.mark.parametrize("name", PRINTERS)
def test_it_is_printed(name: str) -> None:
    """All of the program is in kernels of ours, each of which is printed."""
    show, target = PRINTERS[name], TARGETS[name]
    backend = plugins.load("stack.backends", name)
    made = lower(_program(), backend, Run("new", "", name), target=load(target))
    assert {n.op for n in made.nodes} <= {"kernel", "item", "reshape"}
    texts = [show(n, "k") for n in made.nodes if n.op == "kernel"]
    assert texts
    shown = [text if isinstance(text, str) else text.text for text in texts]
    assert not any("cbrt(" in text or "diagonal(" in text for text in shown)
