"""freeze=True: values computed from weights are kept until a weight changes, and never stale."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stack
from stack.calls.weight_cache import WeightCache
from stack.frontends.torch import FRONTEND
from stack.run.backend import FrozenValues

pytest.importorskip("torch_mlir")


class Net(nn.Module):
    """Two packed products: of a weight, and of a value computed from one."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 70), nn.Linear(70, 70)
        self.register_buffer("scale", torch.rand(70, 24) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(nn.functional.linear(x, self.up.weight * self.scale, self.up.bias))
        return self.down(hidden) + hidden


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(40, 24)


def frozen(net: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    with torch.no_grad():
        return stack.compile(net, x, backend="mlir", freeze=True, **options)


def check(compiled: Any, net: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-4)


def made(compiled: Any) -> int:
    """The number of times that values were computed from weights, from the note."""
    return int(compiled.run.notes["frozen"].split("computed ")[-1].split()[0])


def optimizer_step(net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    net(torch.randn(5, 24)).sum().backward()
    optimizer.step()


def replace(net: Net) -> None:
    net.up.weight = nn.Parameter(torch.randn(70, 24))


CHANGES: dict[str, Callable[[Net], Any]] = {
    "a step of an optimizer": optimizer_step,
    "a state dict": lambda net: net.load_state_dict(Net().state_dict()),
    "a state dict that takes the place": lambda net: net.load_state_dict(
        Net().state_dict(), assign=True
    ),
    "another parameter": replace,
    "other data": lambda net: setattr(net.up.weight, "data", torch.randn(70, 24)),
    "a buffer": lambda net: net.scale.mul_(2),
    "one element": lambda net: net.down.weight.detach()[3, 5].fill_(9),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_weight_that_changes_is_prepared_again(
    change: Callable[[Net], Any], net: Net, x: torch.Tensor
) -> None:
    compiled = frozen(net, x)
    check(compiled, net, x)
    check(compiled, net, x)
    assert made(compiled) == 1
    change(net)
    check(compiled, net, x)
    check(compiled, net, x)
    assert made(compiled) == 2


def test_calls_by_address_see_a_weight_that_changes(net: Net, x: torch.Tensor) -> None:
    compiled = frozen(net, x)
    check(compiled, net, x)
    assert compiled.graph.direct is not None
    check(compiled, net, x)
    check(compiled, net, torch.randn_like(x))
    with torch.no_grad():
        net.down.weight.mul_(2)
    check(compiled, net, x)
    check(compiled, net, x)
    assert made(compiled) == 2
    net.down.weight = nn.Parameter(torch.randn(70, 70))
    check(compiled, net, x)
    check(compiled, net, x)
    assert made(compiled) == 3


def test_another_type_and_back(net: Net, x: torch.Tensor) -> None:
    compiled = frozen(net, x)
    check(compiled, net, x)
    net.to(torch.bfloat16).to(torch.float32)
    check(compiled, net, x)
    assert made(compiled) == 2


def test_results_are_those_without_it(net: Net, x: torch.Tensor) -> None:
    compiled = frozen(net, x)
    with torch.no_grad():
        assert torch.equal(compiled(x), stack.compile(net, x, backend="mlir")(x))
    stages = compiled.run.stages
    assert stages.index("frozen") < stages.index("prepared") < stages.index("called")
    assert compiled.run.coverage["native"] == compiled.run.coverage["ops"]
    assert [k.name for k in compiled.run.kernels].count("pack") == 1


def test_torch_compile_takes_the_option(net: Net, x: torch.Tensor) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="stack", options={"backend": "mlir", "freeze": True})
    check(compiled, net, x)
    net.up.weight.data = torch.randn(70, 24)
    check(compiled, net, x)


def test_with_gradients_nothing_is_frozen(net: Net, x: torch.Tensor) -> None:
    compiled = stack.compile(net, x, backend="mlir", freeze=True)
    compiled(x).sum().backward()
    assert "frozen" not in compiled.run.notes
    assert compiled.run.notes["not frozen"].endswith("gradients are asked for")
    assert "down.weight" in compiled.run.notes["not frozen"]
    optimizer_step(net)
    torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-4)


class Counts(Net):
    """Writes to a buffer that a product reads, and returns a value computed from a weight."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.scale.add_(1)
        return super().forward(x), self.up.weight * 2


def test_what_a_program_writes_to_is_not_frozen(x: torch.Tensor) -> None:
    net, twin = Counts().eval(), Counts().eval()
    twin.load_state_dict(net.state_dict())
    compiled = frozen(net, x)
    with torch.no_grad():
        for _ in range(3):
            found, doubled = compiled(x)
            want, _ = twin(x)
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
            doubled.zero_()  # the caller's own
    assert torch.equal(net.scale, twin.scale)
    assert compiled.run.notes["not frozen"] == "scale: the program writes to them"
    assert made(compiled) == 1


def test_layers_that_share_a_program_have_their_own_values(x: torch.Tensor) -> None:
    torch._dynamo.reset()
    nets = [Net().eval() for _ in range(3)]
    options = {"backend": "mlir", "freeze": True}
    layers = [torch.compile(net, backend="stack", options=options) for net in nets]
    for _ in range(2):
        for layer, net in zip(layers, nets, strict=True):
            check(layer, net, x)


def test_threads_may_call_at_once(net: Net, x: torch.Tensor) -> None:
    compiled = frozen(net, x)
    with torch.no_grad():
        want = net(x)
    found: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad():
            found.extend(compiled(x) for _ in range(5))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(torch.allclose(f, want, rtol=1e-4, atol=1e-4) for f in found)
    assert made(compiled) == 1


def test_values_go_with_their_weights() -> None:
    def prepare(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [arrays[0] * 2]

    call: Any = lambda values, arrays: list(values)
    frozen = FrozenValues((0,), prepare, call, lambda: None, 12, ())
    kept = WeightCache(frozen, FRONTEND)
    first, second = torch.ones(3), torch.zeros(3)
    value = weakref.ref(kept.values([first], [first.numpy()])[0])
    assert kept.values([second], [second.numpy()])[0].tolist() == [0, 0, 0]
    assert kept.values([first], [first.numpy()])[0] is value()
    assert kept.count == 2
    del first
    second.add_(1)
    assert kept.values([second], [second.numpy()])[0].tolist() == [2, 2, 2]
    assert value() is None


def test_few_rows_keep_nothing(net: Net) -> None:
    row = torch.randn(1, 24)
    net.scale.fill_(1)
    plain = nn.Sequential(net.up, nn.ReLU(), net.down)
    compiled = frozen(plain, row)
    check(compiled, plain, row)
    assert "frozen" not in compiled.run.notes


def test_a_tensor_of_inference_mode_is_prepared_in_each_call(x: torch.Tensor) -> None:
    with torch.inference_mode():
        net = Net().eval()
        compiled = stack.compile(net, x, backend="mlir", freeze=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-4)
            net.up.weight.mul_(2)
    assert made(compiled) == 2


def test_sizes_that_vary_have_their_own_values(net: Net) -> None:
    with torch.no_grad():
        compiled = stack.compile(
            net, torch.randn(40, 24), backend="mlir", freeze=True, dynamic=True
        )
    for rows in (40, 67, 0, 1, 40):
        check(compiled, net, torch.randn(rows, 24))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype, net: Net, x: torch.Tensor) -> None:
    net, x = net.to(dtype), x.to(dtype)
    compiled = frozen(net, x)
    with torch.no_grad():
        want = net.double()(x.double())
        net.to(dtype)
        slack = 2**-5 if dtype is torch.bfloat16 else 1e-12
        torch.testing.assert_close(compiled(x).double(), want, rtol=slack, atol=slack)


class LowRank(nn.Module):
    """A weight and what is added to it: a product of two others."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(24, 70)
        self.a, self.b = nn.Linear(24, 3, bias=False), nn.Linear(3, 70, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.base.weight + self.b.weight @ self.a.weight
        return nn.functional.linear(x, weight, self.base.bias)


def test_a_product_of_weights_is_made_once(x: torch.Tensor) -> None:
    net = LowRank().eval()
    compiled = frozen(net, x)
    check(compiled, net, x)
    with torch.no_grad():
        net.a.weight.mul_(3)
    check(compiled, net, x)
    assert made(compiled) == 2
    assert compiled.run["called"].func.params[0].attrs["name"] == "panels"
    assert [n.op for n in compiled.run["called"].func.nodes].count("kernel") == 1


def test_weights_of_a_loop_are_packed_before_it() -> None:
    net, x = nn.LSTM(24, 32, batch_first=True).eval(), torch.randn(40, 5, 24)
    with torch.no_grad():
        compiled = stack.compile(lambda x: net(x)[0], x, backend="mlir", freeze=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x)[0], rtol=1e-4, atol=1e-5)
            net.weight_hh_l0.mul_(0.5)
