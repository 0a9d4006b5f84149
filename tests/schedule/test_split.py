"""A schedule by hand that gives each program a part of what is reduced."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from stack.cli import main
from stack.errors import UsageError
from stack.ir import Builder, Func, param, parse, tensor
from stack.ir.node import walk
from stack.rewrite.pipeline import Pipeline
from stack.schedule import Schedule, of_part, part_of

FUSED = "split_reductions,fuse,coalesce,schedule"


def product(depth: int = 512) -> Func:
    b = Builder()
    x, w = param("x", tensor("f32", 32, depth)), param("w", tensor("f32", depth, 48))
    b.names[z := b.dot(x, w, rule="m k, k n -> m n")] = "z"
    return parse(str(b.func("main", [x, w], [z])))


def rows(size: int = 4096) -> Func:
    b, x = Builder(), param("x", tensor("f32", 5, size))
    b.names[z := b.reduce(x, kind="max", axes=(1,))] = "z"
    return parse(str(b.func("main", [x], [z])))


def stream() -> Func:
    b = Builder()
    q, k, v = (param(n, tensor("f32", *s)) for n, s in zip("qkv", ((16, 16), (256, 16), (256, 16))))
    s = b.dot(q, k, rule="m d, n d -> m n")
    full = s.tensor
    top = b.broadcast(b.reduce(s, kind="max", axes=(1,)), axes=(0,), type=full)
    e = b.exp(b.sub(s, top))
    total = b.broadcast(b.reduce(e, kind="sum", axes=(1,)), axes=(0,), type=full)
    b.names[z := b.dot(b.div(e, total), v, rule="m n, n d -> m d")] = "z"
    made = parse(str(b.func("main", [q, k, v], [z])))
    return Pipeline("canonicalize,stream{min_axis=2,loops=blocks}").run(made).func


def given(func: Func, text: str, passes: str = FUSED) -> Func:
    return Pipeline(passes).run(func, schedules={"z": text}).func


@pytest.mark.parametrize(
    ("make", "text", "shown"),
    [
        (product, "k=128@grid m=16 n=16", "f32[4, 32, 48]"),
        (rows, "r=1024@grid", "f32[20]"),
        (stream, "k=64@grid m=16 k=32", "part=64"),
    ],
)
def test_programs_have_the_parts_that_a_person_gives(make, text: str, shown: str) -> None:  # type: ignore[no-untyped-def]
    func = make()
    assert "z_part" not in str(Pipeline(FUSED).run(func).func)
    made = given(func, text)
    first = next(n for b, n in walk(made.body) if b.names.get(n) == "z_part")
    assert shown in str(made)
    assert all(str(s) in str(first.attrs["schedule"]) for s in of_part(Schedule.parse(text)).splits)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(p.tensor.shape, dtype=np.float32) for p in func.params]
    kernels = given(func, text, f"{FUSED},blocks")
    assert sum(n.op == "kernel" for _, n in walk(kernels.body)) == 2
    found, expected = kernels.interpret(*arrays), func.interpret(*arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_schedule_without_parts_keeps_a_reduction_whole() -> None:
    """A model would split it, as it has few programs; a person says what one does."""
    func = product(16384)
    assert "f32[64, 32, 48]" in str(Pipeline(FUSED).run(func).func)
    (group,) = given(func, "m=16 n=16 k=32").nodes
    assert "m=16@grid n=16@grid k=32@serial" in str(group.attrs["schedule"])


@pytest.mark.parametrize(
    ("make", "text", "why"),
    [
        (product, "k=96@grid", "axis k: parts of 96, which does not divide 512"),
        (product, "k=8@grid", "axis k: parts of 8, the least is 16"),
        (rows, "r=1000@grid", "axis r: parts of 1000, which does not divide 4096"),
        (product, "k=128@grid m=24", "axis m: a block of 24 is no power of two"),
    ],
)
def test_parts_that_cannot_be_are_refused(make, text: str, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=re.escape(why)) as error:
        given(make(), text)
    assert "%z" in str(error.value)


def test_who_has_parts() -> None:
    texts = {"z": "k=128@grid k=32@serial", "y": "k=32", "x": "library"}
    assert [part_of(texts, name, "k") for name in "zyxw"] == [128, 0, 0, None]
    assert str(of_part(Schedule.parse(texts["z"]))) == "k=32@serial"


@pytest.mark.parametrize(
    ("backend", "code", "shown"),
    [("triton", 0, "f32<16x16>"), ("cuda", 0, "f32[4, 32, 48]"), ("mlir", 2, "axis k: 128@grid")],
)
def test_from_the_command_line(
    backend: str, code: int, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.stack"
    path.write_text(str(product()))
    target = "avx2" if backend == "mlir" else "sm_90"
    argv = ["dump", str(path), "--backend", backend, "--target", target, "--to", "tiled"]
    assert main([*argv, "--schedule", "z: k=128@grid m=16 n=16"]) == code
    found = capsys.readouterr()
    assert shown in (found.err if code else found.out)
