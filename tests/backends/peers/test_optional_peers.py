"""IREE and OpenVINO compute the results of a program, or say what to install."""

from __future__ import annotations

import numpy as np
import pytest

import stack.plugins as plugins
from stack.errors import StackError
from stack.ir import parse
from stack.rewrite.inputs import random_inputs
from stack.rewrite.truth import interpreted
from stack.run.backend import Backend

PACKAGES = {"iree": "iree.compiler", "openvino": "openvino"}
TEXT = """func @f(%q: f32[2, 8, 4], %v: f32[2, 8, 4]) -> (f32[2, 8, 4]) at tensor {
  %s = dot(%q, %v) {rule="b m d, b n d -> b m n"} : f32[2, 8, 8]
  %m = reduce(%s) {kind="max", axes=[2]} : f32[2, 8]
  %w = broadcast(%m) {axes=[0, 1]} : f32[2, 8, 8]
  %a = sub(%s, %w) : f32[2, 8, 8]
  %e = exp(%a) : f32[2, 8, 8]
  %t = reduce(%e) {kind="sum", axes=[2]} : f32[2, 8]
  %z = broadcast(%t) {axes=[0, 1]} : f32[2, 8, 8]
  %p = div(%e, %z) : f32[2, 8, 8]
  %o = dot(%p, %v) {rule="b m n, b n d -> b m d"} : f32[2, 8, 4]
  return %o
}
"""


def backend(name: str) -> Backend:
    return plugins.load("stack.backends", name)


@pytest.mark.parametrize("name", PACKAGES)
def test_our_function(name: str) -> None:
    pytest.importorskip(PACKAGES[name])
    func = parse(TEXT)
    inputs = random_inputs(func, 1)
    found = backend(name).compile(func, {})
    for have, want in zip(found.run(inputs), interpreted(func, inputs), strict=True):
        np.testing.assert_allclose(have, want, atol=1e-5)
    assert found.kernels and found.note
    assert all(k.name for k in found.kernels)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    missing = backend(name).missing()
    assert missing is not None and "pip install" in missing


@pytest.mark.parametrize(("name", "takes"), [("iree", "JAX"), ("openvino", "torch")])
def test_programs_of_another_framework_are_refused(
    name: str, takes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"stack.backends.{name}"
    monkeypatch.setattr(f"{module}.is_from", lambda *_: False)
    peer = backend(name).peer
    assert peer is not None and peer.native is not None
    with pytest.raises(StackError, match=f"takes {takes} programs"):
        peer.native(object(), {})
