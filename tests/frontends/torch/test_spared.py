"""Work of Dynamo and AOTAutograd that a capture skips, and work that it must not skip."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import stack
from stack.run.frontend import Captured

torch = pytest.importorskip("torch")

from stack.frontends.torch.compile.aot_autograd import aot_compiled  # noqa: E402

FRESH = """
import sys, torch, stack
before = set(sys.modules)
x = torch.linspace(-1, 1, 12).reshape(3, 4)
with torch.no_grad():
    made = stack.compile(lambda x: torch.softmax(x @ x.T, -1), x, backend="interpreter")(x)
assert torch.allclose(made, torch.softmax(x @ x.T, -1))
print(*sorted(set(sys.modules) - before))
"""


def test_a_first_capture_imports_no_schedulers() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    loaded = done.stdout.split()
    assert "torch._dynamo.output_graph" in loaded
    assert not [name for name in loaded if name.startswith("torch._inductor.sched")]


@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd")
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_graph_that_takes_lists_gives_what_it_gives_flat(with_gradients: bool) -> None:
    class Pair(torch.nn.Module):
        def forward(self, pair: Any, gain: Any) -> Any:
            return (pair[0] * gain + torch.sin(pair[1]),)

    compiled: list[Any] = []

    def compiler(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    arrays = [np.random.default_rng(i).standard_normal((5, 3)) for i in range(3)]
    x, y, gain = (torch.tensor(a, requires_grad=with_gradients) for a in arrays)
    options = {"fw_compiler": compiler, "inference_compiler": compiler, "bw_compiler": compiler}
    call = aot_compiled(torch.fx.symbolic_trace(Pair()), [[x, y], gain], **options)
    (found,) = call([x, y], gain)
    np.testing.assert_allclose(found.detach(), arrays[0] * arrays[2] + np.sin(arrays[1]))
    if with_gradients:
        found.sum().backward()
        np.testing.assert_allclose(y.grad, np.cos(arrays[1]))
        np.testing.assert_allclose(gain.grad, arrays[0])
    assert len(compiled) == 1 + with_gradients


def test_the_captured_text_is_made_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def text(captured: Captured) -> str:
        made.append(captured.make_text())
        return made[-1]

    monkeypatch.setattr(Captured, "text", property(text))
    x = torch.randn(4, 3)
    with torch.no_grad():
        compiled = stack.compile(lambda x: torch.exp(x).sum(0), x, backend="interpreter")
        compiled(x)
    assert not made
    assert "exp" in compiled.run["captured"].text
    assert made
