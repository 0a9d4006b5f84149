"""StableHLO text that JAX writes is imported, and computes what JAX computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from stack.cli import main  # noqa: E402
from stack.errors import UnsupportedOp, UsageError  # noqa: E402
from stack.frontends.files.stablehlo.module import import_text  # noqa: E402
from stack.ir.verifier import verify  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4)).astype(np.float32)
IMAGES = RNG.standard_normal((2, 6, 6, 3)).astype(np.float32)
KERNEL = RNG.standard_normal((3, 3, 3, 4)).astype(np.float32)
WIDE = RNG.random((2, 3, 4)), RNG.random((5, 2, 4))
ROW = np.asarray([2, 0, -1], np.int32)


def attention(x: Any) -> Any:
    scores = jnp.einsum("md,nd->mn", x, x) / 2
    return jax.nn.softmax(jnp.where(jnp.tri(3, dtype=bool), scores, -jnp.inf)) @ x


def loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, c: c * x[0] + i, x[1])


def convolved(x: Any, w: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    made = lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=dims)
    return lax.reduce_window(made, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def moved(x: Any) -> Any:
    padded = lax.pad(x, np.float32(0), ((1, 0, 0), (0, -1, 0)))
    return jnp.concatenate([x.T[::-1], padded], 1)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), (X,)),
    "attention": (attention, (X,)),
    "loop": (loop, (X,)),
    "scan": (lambda x: lax.scan(lambda c, r: (c + r, c.sum()), x[0], x)[1], (X,)),
    "conv": (convolved, (IMAGES, KERNEL)),
    "batched": (lambda x, y: jnp.einsum("bij,kbj->bik", x, y), WIDE),
    "reduce": (lambda x: (x.max(0), x.min(1), x.prod(), (x > 0).all(1), x.sum((0, 1))), (X,)),
    "take": (lambda x, i: jnp.take(x, i, axis=0), (X, ROW)),
    "moves": (moved, (X,)),
    "update": (lambda x, i: lax.dynamic_update_slice(x, x[:1] * 2, (i[0], 0)), (X, ROW)),
    "window": (lambda x: jnp.cumsum(x, 1), (X,)),
    "gradient": (jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x.T) ** 2)), (X,)),
    "types": (lambda x: (x.astype("bfloat16") * 2).astype("float16").astype("int32") << 1, (X,)),
    "constants": (lambda x: x + np.arange(4, dtype=np.float32), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_program(name: str) -> None:
    fn, args = CASES[name]
    with jax.enable_x64(any(a.dtype == np.float64 for a in args)):
        text = jax.jit(fn).lower(*args).as_text()
        want = jax.tree.leaves(fn(*map(jnp.asarray, args)))
        func = import_text(text, "p.mlir")
        verify(func)
        found = func.interpret(*args)
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(want)
    for have, result in zip(found, want, strict=True):
        assert have.dtype == np.asarray(result).dtype
        np.testing.assert_allclose(have, result, rtol=1e-4, atol=1e-5)


def test_source_lines_are_lines_of_the_text() -> None:
    text = jax.jit(jnp.tanh).lower(X).as_text()
    func = import_text(text, "p.mlir")
    (line,) = func.body.locs[func.results[0]]
    assert line.startswith("p.mlir:")
    assert "tanh" in text.splitlines()[int(line.partition(":")[2]) - 1]


def test_errors_name_the_op_and_its_line() -> None:
    text = jax.jit(lambda x: jnp.sort(x)).lower(X).as_text()
    with pytest.raises(UnsupportedOp, match=r"stablehlo\.sort  \(p\.mlir:\d+\)"):
        import_text(text, "p.mlir")
    with pytest.raises(UsageError, match="no StableHLO that parses"):
        import_text("func.func @main(", "p.mlir")


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, run = tmp_path / "attention.mlir", tmp_path / "r"
    path.write_text(jax.jit(attention).lower(X).as_text())
    assert main(["dump", str(path), "--check", "-o", str(run)]) == 0
    assert main(["run", f"{run}:fused", "--against", "imported"]) == 0
    assert "attention.mlir" in capsys.readouterr().out
