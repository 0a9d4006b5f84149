"""A module of torch as the suite runs it: in f64, in eager, compiled; once, and in training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from strangers.report_row import Untraced
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import stack
from stack.errors import StackError

STEPS = 3
STRIDE = 0.01  # of the length of all parameters: the first training step
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Widened(TorchFunctionMode):
    """Computes in f64 where a program asks for f32 by name."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is Tensor.float:
            return args[0].double()
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


@contextmanager
def widened() -> Iterator[None]:
    """f64 is the default type, and what stands for f32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened():
            yield
    finally:
        torch.set_default_dtype(before)


class TorchProgram:
    """A module and its arguments, its weights made ready by `prepare`.

    Raises whatever the module raises in eager.
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.module, self.args = module, args
        self.rate = 0.0
        torch.compiler.reset()  # sizes that differ between architectures are not dynamic
        prepare(module, args)

    def compile(self, module: nn.Module) -> Callable[..., Any]:
        """For one call, without gradients. In parts where Dynamo does not trace it as a whole."""
        try:
            return stack.compile(module, *self.args)
        except StackError as error:
            if not isinstance(error.__cause__, torch._dynamo.exc.TorchDynamoException):
                raise
            return self._in_parts(module)

    def _in_parts(self, module: nn.Module) -> Callable[..., Any]:
        """Raises Untraced where that fails with no compiler behind torch's tracing too."""
        try:
            torch.compile(module, backend="eager")(*self.args)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise Untraced(f"torch.compile fails with any backend: {error}") from error
        torch.compiler.reset()
        return torch.compile(module, backend="stack")

    def compile_training(self, module: nn.Module) -> Callable[..., Any]:
        return torch.compile(module, backend="stack")

    def start(self) -> dict[str, np.ndarray]:
        """Parameters and buffers before training."""
        return state(self.module)

    def exact(self) -> dict[str, np.ndarray]:
        with torch.no_grad(), widened():
            return arrays(double(self.module)(*wide_args(self.args)))

    def eager(self, start: int) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return arrays(self._started(start).eval()(*self.args))

    def found(self) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return arrays(self.compile(self.module)(*self.args))

    def trained_exact(self) -> dict[str, np.ndarray]:
        """Parameters and buffers after training in f64; chooses the learning rate."""
        module, args = double(self.module).train(), wide_args(self.args)
        with widened():
            loss(module(*copy.deepcopy(args))).backward()
        grads = [p.grad.norm() for p in module.parameters() if p.grad is not None]
        weights = [p.detach().norm() for p in module.parameters() if p.grad is not None]
        self.rate = float(STRIDE * torch.stack(weights).norm() / torch.stack(grads).norm())
        module = double(self.module).train()
        with widened():
            return self._train(module, module, args)

    def trained_eager(self, start: int) -> dict[str, np.ndarray]:
        module = self._started(start).train()
        return self._train(module, module, self.args)

    def trained_found(self, start: int) -> dict[str, np.ndarray]:
        module = self._started(start).train()
        return self._train(module, self.compile_training(module), self.args)

    def _started(self, start: int) -> nn.Module:
        """A copy; past the first with weights moved by up to half a unit in their last place."""
        module = copy.deepcopy(self.module)
        if start:
            generator = torch.Generator().manual_seed(start)
            for weight in module.parameters():
                noise = torch.rand(weight.shape, generator=generator) - 0.5
                weight.data.mul_(1 + 2.0**-23 * noise.double())
        return module

    def _train(
        self, module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...]
    ) -> dict[str, np.ndarray]:
        """SGD on the mean square distance of all results from random numbers."""
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), lr=self.rate)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss(call(*args)).backward()
            optimizer.step()
        return state(module)


def prepare(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Make every layer count, and all runs compute one function.

    Dropout is off. Matrices of small numbers and scales that are all small are drawn anew: with
    weights of 0.02, scores of attention are zero. Batch norms start with the statistics of the
    arguments: with those of nothing, results of deep networks vanish.
    """
    for part in module.modules():
        if isinstance(part, DROPOUTS):
            part.p = 0.0
        for name, value in list(vars(part).items()):
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim > 1:
                usual = weight[0].numel() ** -0.5
                if float(weight.std()) < usual / 2:
                    weight.normal_(std=usual)
            elif 0 < float(weight.abs().max()) < 0.1 and weight.unique().numel() == 1:
                weight.uniform_(0.2, 0.8)
        norms = [n for n in module.modules() if isinstance(n, NORMS) and n.track_running_stats]
        momenta = [n.momentum for n in norms]
        for norm in norms:
            norm.momentum = None  # an average over all batches: over this one
            norm.reset_running_stats()
        if norms:
            module.train()(*args)
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
    module.eval()


def loss(results: Any) -> Tensor:
    """Not the mean square: of a normalised result it is constant."""
    generator = torch.Generator().manual_seed(2)
    parts: list[Tensor] = []
    for result in leaves(results).values():
        if result.is_floating_point():
            target = torch.randn(result.shape, generator=generator, dtype=torch.float64)
            parts.append((result - target.to(result)).square().mean())
    return torch.stack(parts).sum()


def leaves(results: Any, path: str = "result") -> dict[str, Tensor]:
    """All tensors of results, by their paths."""
    if isinstance(results, Tensor):
        return {path: results}
    if isinstance(results, Mapping):
        items = list(results.items())
    elif isinstance(results, list | tuple):
        items = list(enumerate(results))
    else:
        return {}
    return {k: t for key, value in items for k, t in leaves(value, f"{path}.{key}").items()}


def arrays(results: Any) -> dict[str, np.ndarray]:
    """On the CPU; 16-bit floats as f32."""
    return {
        k: (t.float() if t.dtype in (torch.bfloat16, torch.float16) else t).detach().numpy().copy()
        for k, t in leaves(results).items()
    }


def state(module: nn.Module) -> dict[str, np.ndarray]:
    return arrays({**dict(module.named_parameters()), **dict(module.named_buffers())})


def double(module: nn.Module) -> nn.Module:
    """A copy in f64, in which experts are a plain loop: torch's grouped product has no f64."""
    made = copy.deepcopy(module).double()
    for part in made.modules():
        choose = getattr(part, "set_experts_implementation", None)
        if callable(choose):
            choose("eager")
    return made


def wide_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
