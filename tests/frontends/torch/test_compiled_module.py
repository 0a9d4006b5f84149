"""A compiled module in place of a module: parameters, state, modes, copies, and in another one."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import stack
from stack.calls.compiled_callable import Compiled
from stack.errors import StackError
from stack.explore.target import program

torch = pytest.importorskip("torch")
nn = torch.nn
X = torch.linspace(-1, 1, 24).reshape(6, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.factor = 3

    def forward(self, x: Any) -> Any:
        return self.b(self.drop(self.a(x))) * self.factor

    def doubled(self) -> int:
        return self.factor * 2


def made() -> tuple[Net, Any]:
    torch.manual_seed(0)
    net = Net().eval()
    return net, stack.compile(net, X)


def agree(compiled: Any, module: Any, x: Any = X) -> None:
    torch.manual_seed(1)
    found = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(found, module(x))


def test_it_is_a_module_with_the_names_of_the_original() -> None:
    net, compiled = made()
    assert isinstance(compiled, nn.Module) and isinstance(compiled, Compiled)
    assert [*compiled.state_dict()] == [*net.state_dict()]
    assert [p for _, p in compiled.named_parameters()] == [*net.parameters()]
    assert [*dict(compiled.named_buffers())] == [*dict(net.named_buffers())]
    assert compiled.doubled() == 6 and compiled.a is net.a


def test_modes_hold_in_later_calls() -> None:
    net, compiled = made()
    agree(compiled, net)
    assert compiled.train() is compiled and net.training and compiled.training
    agree(compiled, copy.deepcopy(net))
    assert compiled.eval() is compiled and not net.training
    agree(compiled, net)
    assert len(compiled.graphs) == 2


def test_state_is_loaded_and_moved() -> None:
    net, compiled = made()
    compiled.load_state_dict({k: v * 0.5 for k, v in net.state_dict().items()})
    agree(compiled, net)
    assert compiled.to(torch.float64) is compiled and net.a.weight.dtype is torch.float64
    agree(compiled, net, X.double())
    compiled.factor = 5
    assert net.factor == 5
    agree(compiled, net, X.double())
    compiled.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())


def test_as_a_part_of_another_module() -> None:
    net, compiled = made()
    outer = nn.Sequential(compiled, nn.Linear(4, 2))
    plain = nn.Sequential(net, outer[1])
    assert [k for k, _ in outer.named_parameters()] == [k for k, _ in plain.named_parameters()]
    assert [*outer.state_dict()] == [*plain.state_dict()]
    outer.load_state_dict(plain.state_dict())
    agree(outer, plain)
    outer.train()
    assert net.training
    outer.eval()
    agree(stack.compile(outer, X), plain)
    torch._dynamo.reset()
    agree(torch.compile(outer, backend="stack"), plain)
    agree(stack.compile(lambda x: compiled(x) + 1, X), lambda x: net(x) + 1)


def test_a_copy_has_parameters_of_its_own() -> None:
    net, compiled = made()
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert type(twin) is type(compiled) and twin.a.weight is not net.a.weight
        agree(twin, net)
        with torch.no_grad():
            twin.a.weight.zero_()
        agree(compiled, net)
        agree(twin, twin.fn)
    shallow = copy.copy(compiled)
    assert shallow.fn is net
    agree(copy.deepcopy(nn.Sequential(compiled)), net)


def test_training() -> None:
    net, compiled = made()
    eager = copy.deepcopy(net)
    for call in (compiled, eager):
        optimizer = torch.optim.SGD(call.parameters(), 0.1)
        (call(X) ** 2).sum().backward()
        optimizer.step()
    torch.testing.assert_close(net.a.weight, eager.a.weight)


def test_hooks_are_those_of_the_original() -> None:
    net, compiled = made()
    handle = compiled.register_forward_hook(lambda module, args, out: out * 0)
    assert compiled(X).abs().max() == 0
    handle.remove()
    agree(compiled, net)


def test_without_arguments_the_first_call_captures() -> None:
    module = stack.compile(Net().eval())
    function = stack.compile(lambda x: x * 2)
    for compiled in (module, function):
        with pytest.raises(StackError, match="not compiled yet"):
            _ = compiled.run
        agree(compiled, compiled.fn)
        assert compiled.run.coverage["native"] > 0


class Busy(nn.Module):
    """Names of its own that `Compiled` has too."""

    def __init__(self) -> None:
        super().__init__()
        self.prepare, self.run = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.run(self.prepare(x))


def test_names_that_both_have_are_those_of_the_compiled_object() -> None:
    busy = Busy()
    compiled = stack.compile(busy, X)
    assert compiled.run.kernels and len([*compiled.parameters()]) == 4
    assert compiled.fn.run is busy.run
    agree(compiled, busy)


def test_an_exported_program() -> None:
    net, _ = made()
    exported = torch.export.export(net, (X,))
    for compiled in (stack.compile(exported, X), stack.compile(exported)):
        agree(compiled, net)
        assert [*compiled.state_dict()] == [*net.state_dict()]
    assert len(stack.trace(exported).results) == 1


def test_an_exported_program_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "exported_net.py"
    path.write_text(
        "import torch\n"
        "net, x = torch.nn.Linear(4, 2), torch.ones(3, 4)\n"
        "exported = torch.export.export(net, (x,))\n"
        "pair = exported, (x,)\n"
    )
    for name, inputs in (("exported", ()), ("exported", ("f32[3,4]",)), ("pair", ())):
        found = program(f"{path}:{name}", inputs=inputs)
        assert found.fn(*found.args).shape == (3, 2)
        assert len(stack.trace(found.fn, *found.args).params) == 3
