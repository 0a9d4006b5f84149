"""Private names of torch, JAX and Triton: one file for each framework reads them, and no other."""

from __future__ import annotations

import ast
from importlib.metadata import PackageNotFoundError, version

import pytest
from framework_names import ROOT, exists, installed
from private_names import all_uses, report, uses_in

SEAMS = ("stack/frameworks/jax_private.py", "stack/frameworks/torch_private.py")
MOST = 150  # uses in these files together
# Uses in other files. This only shrinks: a file that has fewer gets its new count here. Triton's
# interpreter is patched in the one file that reads private names of Triton.
ALLOWED = {"backends/triton/interpreter.py": 2}
COUNTED = ("name", "attribute", "lookup", "mock")


def counted(file: str) -> int:
    return sum(use.kind in COUNTED for use in all_uses().get(file, ()))


def seam_names() -> list[str]:
    found = (use for file in SEAMS for use in uses_in((ROOT / file).read_text(encoding="utf-8")))
    return sorted({use.name for use in found if use.kind == "name"})


def test_private_names_are_in_the_files_for_them() -> None:
    others = {f: n for f in all_uses() if f not in SEAMS and (n := counted(f))}
    assert others == ALLOWED, report()


def test_private_names_are_few() -> None:
    assert sum(map(counted, SEAMS)) <= MOST


def test_nothing_is_mocked_in_the_product() -> None:
    mocked = {f for f, uses in all_uses().items() if any(u.kind == "mock" for u in uses)}
    assert not mocked


@pytest.mark.parametrize("name", seam_names())
def test_the_installed_release_has_the_private_name(name: str) -> None:
    framework = name.partition(".")[0]
    if not installed(framework):
        pytest.skip(f"{framework} is not installed")
    try:
        release = version(framework)
    except PackageNotFoundError:
        release = "of this environment"
    assert exists(name), f"{framework} {release} lacks {name}; tell its function in {SEAMS}"


def test_every_function_for_private_names_says_what_it_is_for() -> None:
    for file in SEAMS:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        assert all(ast.get_docstring(f) for f in functions), file


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch\ntorch._C._go()", ["torch._C._go"]),
        ("import torch._dynamo\ntorch._dynamo.reset()", ["torch._dynamo", "torch._dynamo.reset"]),
        ("from jax._src import core\ncore.typeof", ["jax._src.core", "jax._src.core.typeof"]),
        ("import torch\nx = torch.zeros(3)\nx.untyped_storage()._cdata", ["_cdata"]),
        ("import torch\nx = torch._C\nx.go", ["torch._C", "torch._C.go"]),
        ("load('torch._inductor.graph')", ["torch._inductor.graph"]),
        ("from unittest import mock", ["unittest.mock"]),
        ("import torch\ngetattr(torch, '_go')", ["_go"]),
        ("import torch\ntorch.compile.__doc__, torch.ops.aten.mm.default", []),
    ],
)
def test_uses_are_found(code: str, found: list[str]) -> None:
    assert [use.name for use in uses_in(code)] == found
