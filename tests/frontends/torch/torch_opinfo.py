"""Torch's own samples of an op, through import and a backend, held against eager."""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._functorch.aot_autograd import aot_export_module
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from stack.errors import StackError
from stack.frontends.dynamo import FRONTEND
from stack.frontends.dynamo_capture import decompositions, plain_tracing
from stack.frontends.fx_import import Imported, import_graph
from stack.ir.interpreter import interpret
from stack.ir.node import Func, Node
from stack.ir.types import BF16, DType
from stack.run import plugins
from stack.run.compile import find_backend, lower
from stack.run.record import Run

EPS = float(np.finfo(np.float32).eps)

# Ops whose result is not a function of their arguments.
RANDOM = frozenset(
    [
        "bernoulli",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "multinomial",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.alpha_dropout",
        "nn.functional.feature_alpha_dropout",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.rrelu",
        "new_empty",
        "new_empty_strided",
        "normal",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "uniform",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "svd_lowrank",
        "pca_lowrank",
        "torch.ops.aten._flash_attention_forward",
        "torch.ops.aten._efficient_attention_forward",
    ]
)


# A function and its arrays (bf16 as float32) to its results.
Execute = Callable[[Func, list[np.ndarray]], Any]


def interpreter(func: Func, arrays: list[np.ndarray]) -> Any:
    return interpret(func, *arrays)


def backend_execute(name: str) -> Execute:
    """Runs functions in one of our backends."""
    backend = find_backend(name)

    def execute(func: Func, arrays: list[np.ndarray]) -> Any:
        lowered = lower(func, backend, Run())
        program = backend.compile(lowered, {"call_opaque": FRONTEND.call_opaque})
        given = [_pack(a, p.dtype) for a, p in zip(arrays, func.params, strict=True)]
        results = program.run(given)
        return tuple(_unpack(r, n.dtype) for r, n in zip(results, func.results, strict=True))

    return execute


class NoValues(Exception):
    """The sample was compiled, not run."""


def compile_execute(name: str, target: str = "sm_90") -> Execute:
    """Compiles functions for a GPU that need not be here; raises NoValues."""
    backend: Any = plugins.load("stack.backends", name)

    def execute(func: Func, arrays: list[np.ndarray]) -> Any:
        backend.inspect(lower(func, backend, Run()), {"target": target})
        raise NoValues

    return execute


def _pack(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is not BF16:
        return np.ascontiguousarray(array).reshape(array.shape)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16
    return bits.astype(np.uint16).reshape(array.shape)


def _unpack(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is not BF16:
        return array
    return (array.astype(np.uint32) << 16).view(np.float32).reshape(array.shape)


# Ops that may give any of several equal elements' positions.
TIES = frozenset({"topk", "sort", "argsort", "kthvalue"})


@dataclass
class Report:
    """What became of the samples of one op."""

    name: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    fallback: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return (
            self.passed + len(self.failed) + sum(self.fallback.values()) + sum(self.other.values())
        )

    @property
    def is_native(self) -> bool:
        return self.total > 0 and self.passed == self.total


class NoGraph(Exception):
    """Torch itself cannot trace the sample into a graph."""


class _Holder(torch.nn.Module):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, *values: torch.Tensor) -> tuple[Any, ...]:
        return tuple(self.run(*values))


def ops(dtype: torch.dtype = torch.float32, backward: bool = False) -> Iterator[Any]:
    """Every op of torch's table that takes an element type on the CPU, or has gradients of it."""
    for op in op_db:
        if dtype in op.supported_dtypes("cpu") and (op.supports_autograd or not backward):
            yield op


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(op: Any, limit: int | None, dtype: torch.dtype, backward: bool = False) -> list[Any]:
    torch.manual_seed(0)
    found: list[Any] = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=backward):
        if limit is not None and len(found) == limit:
            break
        found.append(sample)
    return found


def trace(op: Any, sample: Any) -> tuple[Any, list[torch.Tensor], Any]:
    """The graph of one sample; its tensors; what eager runs.

    Results are those of the op; gradients follow where the sample asks for them.
    """
    tree = (sample.input, sample.args, sample.kwargs)
    leaves, spec = pytree.tree_flatten(tree)
    places = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)]
    wanted = [leaves[i].requires_grad for i in places]
    tensors = [leaves[i].detach() for i in places]

    def run(*values: torch.Tensor) -> list[Any]:
        held = [
            v.detach().requires_grad_() if w else v for v, w in zip(values, wanted, strict=True)
        ]
        filled = list(leaves)
        for i, v in zip(places, held, strict=True):
            filled[i] = v
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        if not any(wanted):
            return pytree.tree_leaves(op.op(first, *args, **kwargs))
        with torch.enable_grad():
            # a leaf may not be written to
            first = first.clone() if isinstance(first, torch.Tensor) else first
            out = pytree.tree_leaves(op.op(first, *args, **kwargs))
            return [*out, *_gradients(out, [h for h in held if h.requires_grad])]

    module = _Holder(run)
    try:
        with plain_tracing():
            graph, _ = aot_export_module(
                module,
                tuple(t.clone() for t in tensors),
                trace_joint=False,
                decompositions=decompositions(),
            )
    except Exception as error:
        raise NoGraph(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}") from error
    return graph, tensors, run


def _gradients(outs: list[Any], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of what has any, for cotangents that differ at every element."""
    used = [o for o in outs if isinstance(o, torch.Tensor) and o.requires_grad]
    lines = [torch.arange(o.numel(), device=o.device).sin().reshape(o.shape) for o in used]
    given = [x.to(o.dtype) for x, o in zip(lines, used, strict=True)]
    found = torch.autograd.grad(used, leaves, given, allow_unused=True)
    return [g for g in found if g is not None]


def to_array(tensor: torch.Tensor) -> np.ndarray:
    held = tensor.detach().resolve_conj().resolve_neg()
    return (held.float() if held.dtype is torch.bfloat16 else held).numpy()


def run_imported(imported: Imported, tensors: list[torch.Tensor], execute: Execute) -> list[Any]:
    args = [to_array(tensors[i]) if isinstance(i, int) else to_array(i) for i in imported.inputs]
    results: Any = execute(imported.func, args)
    if not isinstance(results, tuple):
        results = (results,)
    found = iter(results)
    return [next(found) if isinstance(o, Node) else o for o in imported.outputs]


def _values_at(outputs: Any, x: torch.Tensor, sample: Any) -> list[Any]:
    """Positions of equal elements are not specified: the values there are. Positions come last."""
    found: list[Any] = []
    for i, out in enumerate(outputs):
        value = torch.as_tensor(out)
        places = value.dtype is torch.int64 and i == len(outputs) - 1
        if places and value.dim() == x.dim() and x.dim():
            sizes = [value.shape[i] == s for i, s in enumerate(x.shape)]
            axes = [i for i, same in enumerate(sizes) if not same]
            dim = axes[0] if axes else sample.kwargs.get("dim", next(iter(sample.args), -1))
            dim = dim if isinstance(dim, int) and -x.dim() <= dim < x.dim() else -1
            value = torch.sort(x.gather(dim, value), dim).values
        elif places:
            continue
        found.append(to_array(value) if isinstance(out, np.ndarray) else value)
    return found


def agree(ours: Any, eager: Any, exact: Any) -> str | None:
    """Why two values differ, or None."""
    if not isinstance(eager, torch.Tensor):
        return None if ours == eager else f"{ours} is not {eager}"
    if ours is None:
        return "no value"
    want = to_array(eager)
    if ours.shape != want.shape:
        return f"shape {ours.shape} is not {want.shape}"
    if ours.dtype != want.dtype:
        return f"{ours.dtype} is not {want.dtype}"
    if want.dtype.kind not in "fc":
        return None if np.array_equal(ours, want) else "values differ"
    small = eager.element_size() == 2
    rtol, atol = (2e-2, 1e-2) if small else (1e-5, 1e-6)
    if np.allclose(ours, want, rtol=rtol, atol=atol, equal_nan=True):
        return None
    return _within(3 if small else 2, ours, want, exact)


def _within(times: int, ours: np.ndarray, want: np.ndarray, exact: Any) -> str | None:
    if not isinstance(exact, torch.Tensor):
        return f"differs by {_largest(ours, want):.3g}"
    truth = to_array(exact)
    if truth.shape != want.shape:
        return f"differs by {_largest(ours, want):.3g}"
    finite = np.isfinite(truth) & np.isfinite(want)
    if not np.array_equal(np.isnan(ours[~finite]), np.isnan(want[~finite])):
        return "nan in other places"
    scale = float(np.abs(truth[finite]).max(initial=0.0))
    allowed = times * _largest(want[finite], truth[finite]) + 8 * EPS * max(scale, 1e-30)
    error = _largest(ours[finite], truth[finite])
    if error <= allowed:
        return None
    return f"error {error:.3g}, eager's {_largest(want[finite], truth[finite]):.3g}"


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    gap = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
    value = float(np.nanmax(gap, initial=0.0))
    return math.inf if math.isnan(value) else value


def _kind(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)


def eager_results(run: Any, tensors: list[torch.Tensor], device: str) -> list[Any]:
    """What eager gives on a device, in host memory.

    On the CPU where the sample names it, or where the device gives another type: saved statistics.
    """
    here = run(*(t.clone() for t in tensors))
    if device == "cpu":
        return here
    try:
        found = run(*(t.clone().to(device) for t in tensors))
    except Exception:
        return here
    if [_kind(x) for x in found] != [_kind(x) for x in here]:
        return here
    return [x.cpu() if isinstance(x, torch.Tensor) else x for x in found]


def check_sample(
    op: Any, sample: Any, report: Report, execute: Execute = interpreter, device: str = "cpu"
) -> None:
    """Trace, run and compare one sample; `device` is where eager runs."""
    try:
        graph, tensors, run = trace(op, sample)
    except NoGraph as error:
        report.other[f"torch does not trace it: {error}"] += 1
        return
    try:
        imported = import_graph(graph, "f")
    except StackError as error:
        report.fallback[f"refused: {error}"] += 1
        return
    except Exception as error:
        report.failed.append(f"import: {type(error).__name__}: {error}")
        return
    if imported.why:
        report.fallback[", ".join(f"{k} ({v})" for k, v in sorted(imported.why.items()))] += 1
        return
    try:
        mine = run_imported(imported, tensors, execute)
    except NoValues:
        report.passed += 1
        return
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        report.failed.append(f"run: {type(error).__name__}: {error} ({where.name})")
        return
    with torch.no_grad():
        eager = eager_results(run, tensors, device)
        try:
            exact = run(*(t.double() if t.is_floating_point() else t for t in tensors))
        except Exception:
            exact = [None] * len(eager)
    if op.name in RANDOM:
        report.passed += 1
        return
    if len(exact) != len(eager):
        exact = [None] * len(eager)
    # inputs that the op wrote to come first
    mine = mine[len(mine) - len(eager) :]
    if op.name in TIES:
        mine, eager = _values_at(mine, tensors[0], sample), _values_at(eager, tensors[0], sample)
        exact = [None] * len(eager)
    reasons = [agree(m, e, x) for m, e, x in zip(mine, eager, exact, strict=True)]
    bad = [r for r in reasons if r is not None]
    if bad:
        shapes = [list(t.shape) for t in tensors]
        report.failed.append(f"{bad[0]}: inputs {shapes} args {sample.args} {sample.kwargs}"[:300])
    else:
        report.passed += 1


def check_op(
    op: Any,
    limit: int | None,
    dtype: torch.dtype = torch.float32,
    execute: Execute = interpreter,
) -> Report:
    report = Report(full_name(op))
    try:
        found = samples(op, limit, dtype)
    except Exception as error:
        report.other[f"no samples: {error}"] += 1
        return report
    for sample in found:
        check_sample(op, sample, report, execute)
    return report


def table(reports: list[Report]) -> str:
    """Counts, then every failure, fallback and op that torch cannot trace."""
    rows = [
        f"{len(reports)} ops, {sum(r.total for r in reports)} samples:"
        f" {sum(r.passed for r in reports)} passed,"
        f" {sum(len(r.failed) for r in reports)} failed,"
        f" {sum(sum(r.fallback.values()) for r in reports)} with a fallback,"
        f" {sum(sum(r.other.values()) for r in reports)} that torch does not trace",
        f"{sum(r.is_native for r in reports)} ops native and right in all samples",
    ]
    for report in reports:
        rows.extend(f"FAILED   {report.name}: {text}" for text in report.failed)
        found = [("fallback", report.fallback), ("untraced", report.other)]
        for kind, counts in found:
            rows.extend(f"{kind} {report.name} {n}/{report.total}: {k}" for k, n in counts.items())
    return "\n".join(rows)
