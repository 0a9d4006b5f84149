"""The check finds planted errors: in results, gradients and buffers; and counts fallbacks."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from strangers import report  # noqa: E402
from strangers.check import check  # noqa: E402
from strangers.report_row import Report  # noqa: E402
from strangers.torch_program import TorchProgram  # noqa: E402
from torch import Tensor, nn  # noqa: E402


class Small(nn.Module):
    """A parameter, a running buffer, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.norm(self.first(x).tanh())
        return {"y": self.last(y), "best": y.argmax(1)}


def small() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Small(), (torch.randn(16, 6),)


class Wrapped(nn.Module):
    """Changes what eager does: `before` the call, and its `results`."""

    def __init__(
        self,
        module: nn.Module,
        results: Callable[[Any], Any] = lambda r: r,
        before: Callable[[nn.Module], None] = lambda m: None,
    ) -> None:
        super().__init__()
        self.module, self.results, self.before = module, results, before

    def forward(self, x: Tensor) -> Any:
        self.before(self.module)
        return self.results(self.module(x))


def planted(
    forward: Callable[..., Any] = lambda m: m, training: Callable[..., Any] = lambda m: m
) -> Report:
    """The report on a compiler that is eager, but for an error."""

    class Planted(TorchProgram):
        def compile(self, module: nn.Module) -> Callable[..., Any]:
            return forward(module)

        def compile_training(self, module: nn.Module) -> Callable[..., Any]:
            return training(module)

    return check(small, "small", Planted)


def test_nothing_planted() -> None:
    row = planted()
    assert row.right and row.trained and not row.failed and not row.skipped
    assert not row.captured  # nothing went through the compiler
    assert row.error <= row.eager_error <= row.limit


@pytest.mark.parametrize(
    "results",
    [
        lambda r: {**r, "y": r["y"] * (1 + 1e-5)},
        lambda r: {**r, "y": r["y"].double()},
        lambda r: {**r, "y": r["y"][:, :2]},
        lambda r: {**r, "y": r["y"].where(r["y"] < r["y"].max(), torch.nan)},
        lambda r: {**r, "best": (r["best"] + 1) % 8},
        lambda r: {"y": r["y"]},
    ],
    ids=["scale", "type", "shape", "nan", "integer", "missing"],
)
def test_wrong_results(results: Callable[[Any], Any]) -> None:
    row = planted(forward=functools.partial(Wrapped, results=results))
    assert not row.right and row.trained
    assert report.verdict(row.as_dict()) == "wrong"


def scaled_gradient(name: str, factor: float, module: nn.Module) -> nn.Module:
    module.get_parameter(name).register_hook(lambda g: g * factor)
    return module


@pytest.mark.each
@pytest.mark.parametrize("name", ["first.weight", "first.bias", "norm.weight", "last.bias"])
@pytest.mark.parametrize("factor", [0.0, 1.001, -1.0])
def test_wrong_gradients(name: str, factor: float) -> None:
    row = planted(training=functools.partial(scaled_gradient, name, factor))
    assert row.right and not row.trained
    assert report.verdict(row.as_dict()) == "untrained"


@pytest.mark.parametrize("wrong", [(0,), (0, 1), (0, 2), (0, 1, 2)])
def test_most_starts_have_to_be_right(wrong: tuple[int, ...]) -> None:
    started = itertools.count()

    def train(module: nn.Module) -> nn.Module:
        return scaled_gradient("last.bias", 1.1 if next(started) in wrong else 1.0, module)

    row = planted(training=train)
    assert (row.starts, row.leaving) == (3, len(wrong))
    assert row.trained == (len(wrong) == 1) == (row.train_error <= 1)
    assert f"{len(wrong)} of 3 starts go another way" in report.why(row.as_dict())


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_run_of_eager_that_goes_another_way_allows_nothing(gone: int) -> None:
    class Kinked(TorchProgram):
        def trained_eager(self, start: int) -> dict[str, np.ndarray]:
            run = super().trained_eager(start)
            return (
                {k: v * 1.5 if v.dtype.kind == "f" else v for k, v in run.items()}
                if (start == gone)
                else run
            )

        def compile(self, module: nn.Module) -> Callable[..., Any]:
            return module

        def compile_training(self, module: nn.Module) -> Callable[..., Any]:
            return scaled_gradient("first.weight", 1.001, module)

    assert not check(small, "small", Kinked).trained


@pytest.mark.every(2)
@pytest.mark.parametrize("factor", [0.0, float("inf"), float("nan")])
def test_nothing_that_moves(factor: float) -> None:
    class Still(TorchProgram):
        def trained_exact(self) -> dict[str, np.ndarray]:
            start, run = self.start(), super().trained_exact()
            if factor == 0.0:
                return start
            return {k: v * factor if v.dtype.kind == "f" else v for k, v in run.items()}

    row = check(small, "small", Still)
    expected = "no parameter moved" if factor == 0.0 else "training in f64 is not finite"
    assert not row.trained and row.worst == expected


def test_what_makes_several_graphs_is_compiled_in_parts() -> None:
    class Broken(Small):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            torch._dynamo.graph_break()
            return super().forward(x.sin())

    class Twice(Broken):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return super().forward(x.cos())

    for module, parts in ((Broken, 1), (Twice, 2)):
        row = check(lambda made=module: (made(), (torch.randn(16, 6),)), "broken")
        assert row.ok and row.parts == parts, row
        assert (f"{parts} graphs" in report.why(row.as_dict())) == (parts > 1)


def test_what_torch_does_not_trace_is_a_failure_of_torchs() -> None:
    class Untraced(Small):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            if torch.compiler.is_compiling():
                x = x + torch.ones(5)
            return super().forward(x)

    row = check(lambda: (Untraced(), (torch.randn(16, 6),)), "untraced")
    assert row.failed.startswith("capture: Untraced: torch.compile fails with any backend")


@pytest.mark.parametrize(
    "before",
    [
        lambda m: m.norm.eval(),
        lambda m: m.norm.num_batches_tracked.add_(1),
        lambda m: m.norm.running_mean.mul_(0.999),
        lambda m: m.requires_grad_(False) and m.last.requires_grad_(),
    ],
    ids=["frozen", "count", "mean", "no gradient"],
)
def test_wrong_buffers(before: Callable[[nn.Module], Any]) -> None:
    row = planted(training=functools.partial(Wrapped, before=before))
    assert row.right and not row.trained and row.worst


def test_failures_are_rows() -> None:
    def refuse(module: nn.Module) -> Any:
        raise RuntimeError("no code for this\nmore lines")

    row = planted(forward=refuse)
    assert row.failed == "capture: RuntimeError: no code for this"
    assert report.verdict(row.as_dict()) == "failed"
    assert planted(training=refuse).failed == "train: RuntimeError: no code for this"


def test_only_what_is_not_installed_is_skipped() -> None:
    def absent() -> Any:
        return importlib.import_module("no_such_library")

    def broken() -> Any:
        raise ImportError("cannot import name")

    assert check(absent).skipped == "ModuleNotFoundError: No module named 'no_such_library'"
    assert not check(broken).skipped and check(broken).failed.startswith("build: ImportError")


def test_the_compiler_is_right_and_counted() -> None:
    row = check(small)
    assert row.ok and row.captured and row.fully_native, row
    assert row.ops > 5 and row.train_ops > row.ops and row.graphs >= 2


def test_fallbacks_are_counted() -> None:
    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + torch.linalg.eigvalsh(x.T @ x)

    row = check(lambda: (Spectrum(), (torch.randn(16, 6),)), "spectrum")
    assert row.right and row.fallback and not row.ok and not row.fully_native, row
    assert "eigh" in report.why(row.as_dict())


def test_the_end_of_a_report() -> None:
    rows = [
        Report("a", captured=True, right=True, trained=True),
        Report("b", captured=True, right=True, failed="train: RuntimeError: why"),
        Report("c", skipped="no timm"),
    ]
    text = "\n".join(report.counts([json.loads(json.dumps(r.as_dict())) for r in rows]))
    assert "3 architectures, 1 skipped, 2 checked" in text
    assert "captured: 2 of 2" in text and "trained: 1 of 2" in text
    assert text.endswith("not ok:\n  b: failed: train: RuntimeError: why")
    assert "no timm" in report.line(rows[2].as_dict())


def test_a_process_that_dies_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert report.apart("timm/vit", 60, 1)["failed"] == "process: the process ended with 1"
