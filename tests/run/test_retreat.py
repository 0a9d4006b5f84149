"""A refused kernel costs its tile, then its group, then goes to a library; nobody sees an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import stack
import stack.plugins as plugins
from stack.explore.dump import describe
from stack.ir import Builder, Func, param, parse, tensor
from stack.ir.node import walk
from stack.ir.refusal import KernelRefused
from stack.rewrite import Pipeline
from stack.rewrite.check import as_list
from stack.rewrite.inputs import random_inputs
from stack.run.backend import Backend
from stack.run.compile import build
from stack.run.record import Run

torch = pytest.importorskip("torch")


def chain() -> Func:
    """A row of elementwise ops and a reduction: one group."""
    b, x = Builder(), param("x", tensor("f32", 8, 16))
    y = b.tanh(b.exp(x))
    return b.func("main", [x], [b.reduce(b.mul(y, y), kind="sum", axes=(1,))])


def product() -> Func:
    b = Builder()
    x, w = param("x", tensor("bf16", 256, 128)), param("w", tensor("bf16", 128, 512))
    return b.func("main", [x, w], [b.tanh(b.dot(x, w, rule="m k, k n -> m n"))])


def attention() -> Func:
    b = Builder()
    q, k, v = (param(n, tensor("f32", 32, 16)) for n in "qkv")
    s = b.dot(q, k, rule="m d, n d -> m n")
    top = b.broadcast(b.reduce(s, kind="max", axes=(1,)), axes=(0,), type=s.type)
    p = b.exp(b.sub(s, top))
    total = b.broadcast(b.reduce(p, kind="sum", axes=(1,)), axes=(0,), type=s.type)
    return b.func("main", [q, k, v], [b.dot(b.div(p, total), v, rule="m n, n d -> m d")])


def refuse_texts(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """MLIR refuses every kernel with a word in its text."""
    from stack.backends.mlir import jit

    real = jit.build

    def refuse(text: str, *rest: Any) -> Any:
        if word in text:
            raise jit.CompileError("PassManager::run failed")
        return real(text, *rest)

    monkeypatch.setattr(jit, "build", refuse)


class Refusing:
    """A compiler that refuses some kernels, and gives back what it takes."""

    def __init__(self, refuse: Callable[[Sequence[str]], bool]) -> None:
        self.refuse = refuse

    def __call__(self, func: Func) -> Func:
        kernels = [n for _, n in walk(func.body) if n.op == "kernel"]
        refused = {k: "no" for k in kernels if self.refuse(k.attrs["ops"])}
        if refused:
            raise KernelRefused(refused)
        return func


def backend_of(name: str) -> Backend:
    return plugins.load("stack.backends", name)


def lowered(func: Func, name: str, refuse: Callable[[Sequence[str]], bool]) -> tuple[Func, Run]:
    run = Run()
    return build(func, backend_of(name), run, Refusing(refuse)), run


def assert_same(func: Func, other: Func, tolerance: float = 1e-5) -> None:
    inputs = random_inputs(func, 0)
    for got, want in zip(as_list(other.interpret(*inputs)), as_list(func.interpret(*inputs))):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["mlir", "triton", "cuda"])
def test_nothing_is_recorded_where_nothing_is_refused(name: str) -> None:
    _, run = lowered(chain(), name, lambda ops: False)
    assert run.stages == [stage for stage, _ in backend_of(name).lowering.stages]


@pytest.mark.parametrize("name", ["mlir", "triton", "cuda"])
def test_a_group_is_split_where_it_is_refused_whole(name: str) -> None:
    found, run = lowered(chain(), name, lambda ops: len(ops) > 2)
    kinds = {n.op for n in found.nodes if n.op in ("kernel", "fusion")}
    assert kinds == {"kernel"}
    assert_same(chain(), found)
    assert "groups: no" in run["retreat"].notes[0]
    assert parse(run["retreat"].text) is run["retreat"].func


@pytest.mark.each
@pytest.mark.parametrize("name", ["mlir", "triton", "cuda"])
@pytest.mark.parametrize("make", [chain, product, attention])
def test_a_library_does_what_no_kernel_may(name: str, make: Callable[[], Func]) -> None:
    func = make()
    found, run = lowered(func, name, lambda ops: True)
    assert not any(n.op == "kernel" for n in found.nodes)
    steps = [n for n in found.nodes if n.op == "fusion"]
    assert steps
    assert all(n.attrs["kind"] == "library" for n in steps)
    assert_same(func, found, 0.05 if make is product else 1e-5)
    assert any("takes the library: no" in note for note in run["retreat"].notes)


def test_tiles_come_before_smaller_groups() -> None:
    tried: list[str] = []

    def make(func: Func) -> Func:
        kernel = next(n for n in func.nodes if n.op == "kernel")
        if "tanh" in kernel.attrs["ops"] and "dot" in kernel.attrs["ops"]:
            tried.append(f"{kernel.attrs['warps']} {kernel.blocks[0]}")
            raise KernelRefused({kernel: "it does not fit"})
        return func

    run = Run()
    build(product(), backend_of("triton"), run, make)
    assert len(set(tried)) == len(tried) == 4  # each tile once
    ways = [note.split(": ")[0].split("takes ")[1] for note in run["retreat"].notes]
    assert [way.split()[0] for way in ways[:3]] == ["schedule"] * 3
    assert ways[3] == "2 groups"


def test_only_the_refused_group_changes_and_equal_ones_change_together() -> None:
    b = Builder()
    x, y, z = (param(n, tensor("f32", 8, 16)) for n in "xyz")

    def head(v: Any) -> Any:
        return b.reduce(b.tanh(b.exp(v)), kind="sum", axes=(1,))

    func = b.func("main", [x, y, z], [head(x), head(y), b.reduce(b.sqrt(z), kind="max", axes=(0,))])
    found, run = lowered(func, "mlir", lambda ops: "tanh" in ops)
    assert len(run["retreat"].notes) == len(set(run["retreat"].notes))
    ops = [set(n.attrs["ops"]) for n in found.nodes if n.op == "kernel"]
    assert any("sqrt" in found for found in ops)
    assert not any("tanh" in found for found in ops)
    assert_same(func, found)


def test_groups_inside_of_loops_and_branches_are_found() -> None:
    func = stack.trace(_looped, *_looped_args(), frontend="jax")
    found, run = lowered(func, "mlir", lambda ops: "tanh" in ops)
    assert run["retreat"].notes
    assert_same(func, found)


def _looped(x: Any) -> Any:
    import jax

    return jax.lax.fori_loop(0, 3, lambda _, v: jax.numpy.tanh(v) * 2, x)


def _looped_args() -> tuple[Any, ...]:
    jax = pytest.importorskip("jax")
    return (jax.numpy.ones((4, 4)),)


def test_what_comes_from_no_group_is_an_error() -> None:
    passes = ",".join(spec for _, spec in backend_of("mlir").lowering.stages)
    kernel = next(n for n in Pipeline(passes).run(product()).func.nodes if n.op == "kernel")

    def make(func: Func) -> Func:
        raise KernelRefused({kernel: "never heard of it"})

    with pytest.raises(KernelRefused, match="never heard"):
        build(chain(), backend_of("mlir"), Run(), make)


@pytest.mark.parametrize("op", ["tanh", "transpose"])  # in the product's kernel, what packs for it
def test_kernels_of_frozen_weights_are_found(op: str) -> None:
    b = Builder()
    x, w = param("x", tensor("f32", 40, 24)), param("w", tensor("f32", 24, 128))
    func = b.func("main", [x, w], [b.tanh(b.dot(x, b.neg(w), rule="m k, k n -> m n"))])
    run = Run()
    refuse = Refusing(lambda ops: op in ops)
    found = build(func, backend_of("mlir"), run, refuse, weights=["w"])
    made = [n.attrs["ops"] for n in found.nodes if n.op == "kernel"]
    assert not any(op in ops for ops in made)
    assert any("takes" in note for note in run["retreat"].notes)
    assert_same(func, found)


def test_a_user_gets_results_and_coverage_says_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    refuse_texts(monkeypatch, "exp")
    x = torch.randn(8, 16)
    compiled = stack.compile(lambda x: torch.tanh(x.exp()).sum(1) + 1, x, cache=False)
    torch.testing.assert_close(compiled(x), torch.tanh(x.exp()).sum(1) + 1)
    assert compiled.run.coverage["library"] >= 1
    assert "PassManager" in compiled.run["retreat"].notes[0]
    assert "PassManager::run failed" in describe(compiled.run.manifest())
    folder = compiled.run.save(tmp_path / "run")
    assert "PassManager" in (folder / "notes" / "retreat.txt").read_text()


def test_a_frozen_program_retreats_as_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_texts(monkeypatch, "tanh")
    net = torch.nn.Sequential(torch.nn.Linear(24, 70), torch.nn.Tanh(), torch.nn.Linear(70, 7))
    x = torch.randn(40, 24)
    with torch.no_grad():
        plain = stack.compile(net, x, cache=False)
        frozen = stack.compile(net, x, cache=False, freeze=True)
        assert torch.equal(frozen(x), plain(x))
        torch.testing.assert_close(frozen(x), net(x), rtol=1e-5, atol=1e-5)
    assert frozen.run.coverage == plain.run.coverage
    assert frozen.run.coverage["library"] == 1
    assert frozen.run["retreat"].notes == plain.run["retreat"].notes
    assert [k.name for k in frozen.run.kernels].count("pack") == 1
