"""Lines of a program that is written with a library of modules: the user's own, and the modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stack
from stack.explore.provenance import matches
from stack.run.rejected_arguments import is_users

LIBRARY = """
import jax, jax.numpy as jnp
def dense(x, w, name):
    with jax.named_scope(name):
        y = x @ w
        return y + 1
@jax.jit
def gelu(x):
    z = jnp.tanh(x)
    return x * z
def module(name, fn):
    def call(*args):
        with jax.named_scope(name):
            return fn(*args)
    return call
"""


@pytest.fixture(params=["site-packages", "target"])
def library(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package as pip installs it: in site-packages, or in a folder that `--target` names."""
    folder = tmp_path / request.param
    folder.mkdir()
    if request.param == "target":
        (folder / "layers_of_a_library-1.0.dist-info").mkdir()
    (folder / "layers_of_a_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("layers_of_a_library")
    del sys.modules["layers_of_a_library"]


def net(library: Any) -> Callable[..., Any]:
    def body(x: Any, w: Any) -> Any:
        h = library.dense(x, w, "up")  # first
        g = library.gelu(h)  # second
        return library.dense(g, w, "down")  # third

    return library.module("Net", body)


def lines(func: Any) -> dict[str, set[str]]:
    """The source lines of each kind of op, without the file's number of the line."""
    found: dict[str, set[str]] = {}
    text = Path(__file__).read_text().splitlines()
    blocks = [func.body]
    while blocks:
        block = blocks.pop()
        for node in block.nodes:
            for line in block.locs.get(node, ()):
                place, _, module = line.partition(" ")
                file, _, number = place.rpartition(":")
                assert file == "test_source.py", line
                mark = text[int(number) - 1].rpartition("# ")[2]
                found.setdefault(node.op, set()).add(f"{mark} {module}")
            blocks.extend(node.blocks)
    return found


def test_lines_of_the_user_and_modules_of_the_library(library: Any) -> None:
    func = stack.trace(net(library), jnp.ones((4, 8)), jnp.ones((8, 8)))
    found = lines(func)
    assert found["dot"] == {"first Net.up", "third Net.down"}
    assert found["tanh"] == {"second Net"}  # inside of a nested jit, which cuts JAX's stack
    names = set(func.body.names.values())
    assert "h" in names
    assert "y" not in names and "z" not in names


def test_gradients_and_loops_keep_the_modules(library: Any) -> None:
    fn = net(library)
    x, w = jnp.ones((4, 8)), jnp.ones((8, 8))
    found = lines(stack.trace(jax.grad(lambda x, w: fn(x, w).sum(), 1), x, w))
    assert {"first Net.up", "third Net.down"} <= found["dot"]

    def looped(x: Any, ws: Any) -> Any:
        with jax.named_scope("layers"):
            return jax.lax.scan(lambda h, w: (fn(h, w), None), x, ws)[0]

    found = lines(stack.trace(looped, x, jnp.ones((5, 8, 8))))
    assert found["dot"] == {"first layers.Net.up", "third layers.Net.down"}


def test_modules_are_asked_for_by_their_paths(library: Any) -> None:
    run = stack.compile(net(library), jnp.ones((4, 8)), jnp.ones((8, 8))).run
    assert all(s.startswith("test_source.py:") for k in run.kernels for s in k.source)
    for what in ("Net/up", "Net.up", "up"):
        assert "dot(" in run.where(what), what
        assert "third" not in run.where(what)
        assert run.explain(what)
    assert "tanh" in run.where("Net")


def test_without_a_module_the_function_is_named() -> None:
    def scaled(x: Any) -> Any:
        return x * 2 + jnp.einsum("ij,jk->ik", x, x)  # own

    found = lines(stack.trace(scaled, jnp.ones((3, 3))))
    assert {m for marks in found.values() for m in marks} == {"own scaled"}


def test_a_library_alone_has_its_own_lines(library: Any) -> None:
    func = stack.trace(library.gelu, jnp.ones(3))
    held = {line for lines in func.body.locs.values() for line in lines}
    assert {line.partition(":")[0] for line in held} == {"layers_of_a_library.py"}


@pytest.mark.parametrize(
    ("what", "is_it"),
    [
        ("Net/up", True), ("up", True), ("Net.up", True), ("net.py", True), ("net.py:3", True),
        ("Net", True), ("p", False), ("Ne", False), ("Net/down", False), ("net.py:4", False),
        ("t.py", False),
    ],
)  # fmt: skip
def test_what_a_line_is_found_by(what: str, is_it: bool) -> None:
    assert matches("net.py:3 Net.up", what) == is_it


def test_installed_files_are_no_users(tmp_path: Path) -> None:
    assert is_users(str(tmp_path / "net.py"))
    assert is_users(__file__)
    assert not is_users(jax.__file__)
    assert not is_users(str(tmp_path / "dist-packages" / "net" / "net.py"))
