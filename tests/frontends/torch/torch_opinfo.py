"""Torch's own samples of an op, through import and a backend, compared with eager."""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.testing._internal.common_utils as torch_testing
from torch._functorch.aot_autograd import aot_export_module
from torch.overrides import TorchFunctionMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import stack.plugins as plugins
from stack.errors import StackError
from stack.frontends.torch import FRONTEND
from stack.frontends.torch.importer.graph import Imported, import_graph
from stack.frontends.torch.tracing.dynamo import tables
from stack.frontends.torch.tracing.functional import decompositions, plain_tracing
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.types import BF16, DType
from stack.run.compile import find_backend, lower
from stack.run.record import Run

DRAWS = 8  # of other inputs, where the first have a larger error than allowed

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

# Samples ask which unittest asks for them, by reading the source of every frame on the stack.
torch_testing.extract_test_fn = lambda: None

# A function and its arrays (bf16 as float32) to its results.
Execute = Callable[[Func, list[np.ndarray]], Any]


def interpreter(func: Func, arrays: list[np.ndarray]) -> Any:
    return func.interpret(*arrays)


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
    wide = np.left_shift(array, 16, dtype=np.uint32)
    return np.asarray(wide).view(np.float32)  # a scalar where it has no axes


# Ops that may give any of several equal elements' positions.
TIES = frozenset({"topk", "sort", "argsort", "kthvalue"})
# Ops whose gradients are at those positions.
SORTS = TIES | {"msort"}


@dataclass
class Report:
    """The outcomes of the samples of one op."""

    name: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    fallback: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    floor: list[tuple[float, float]] = field(default_factory=list)

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
    """The first samples of an op, made as by `op.sample_inputs`, which also reads the source of
    every function on the stack to find a test of unittest.
    """
    found: list[Any] = []
    made = iter(op.sample_inputs_func(op, "cpu", dtype, backward))
    while limit is None or len(found) < limit:
        torch_testing.set_rng_seed()
        sample = next(made, None)
        if sample is None:
            break
        found.append(sample)
    return found


def trace(op: Any, sample: Any) -> tuple[Any, list[torch.Tensor], Any]:
    """The graph of one sample; its tensors; what eager runs.

    Results are those of the op; gradients follow where the sample asks for them, for cotangents
    that are the last tensors.
    """
    tree = (sample.input, sample.args, sample.kwargs)
    leaves, spec = pytree.tree_flatten(tree)
    places = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)]
    wanted = [leaves[i].requires_grad for i in places]
    tensors = [leaves[i].detach() for i in places]

    def call(held: list[torch.Tensor], exact: bool = False) -> list[Any]:
        filled = list(map(wide, leaves)) if exact else list(leaves)
        for i, v in zip(places, held, strict=True):
            filled[i] = v
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        if any(wanted) and isinstance(first, torch.Tensor):
            first = first.clone()  # a leaf may not be written to
        return pytree.tree_leaves(op.op(first, *args, **kwargs))

    def run(*values: torch.Tensor, exact: bool = False) -> list[Any]:
        given = values[len(places) :]
        held = [
            v.detach().requires_grad_() if w else v
            for v, w in zip(values[: len(places)], wanted, strict=True)
        ]
        if not any(wanted):
            return call(held, exact)
        with torch.enable_grad():
            out = call(held, exact)
            used = _with_gradients(out)
            found = torch.autograd.grad(
                used,
                [h for h in held if h.requires_grad],
                [g.to(o.dtype) for g, o in zip(given, used, strict=True)],
                allow_unused=True,
            )
            return [*out, *(g for g in found if g is not None)]

    try:
        if any(wanted):
            held = [t.clone().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)]
            used = _with_gradients(call(held))
            tensors += [torch.randn(o.shape, dtype=torch.float64).to(o.dtype) for o in used]
        with plain_tracing(), _WrittenOut():
            graph, _ = aot_export_module(
                _Holder(run),
                tuple(t.clone() for t in tensors),
                trace_joint=False,
                decompositions=decompositions(),
            )
    except Exception as error:
        raise NoGraph(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}") from error
    return graph, tensors, run


class _WrittenOut(TorchFunctionMode):
    """Applies `write_out` to calls, for a sample that Dynamo has made no graph of."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return tables().written.get(func, func)(*args, **(kwargs or {}))


def _with_gradients(outs: list[Any]) -> list[torch.Tensor]:
    return [o for o in outs if isinstance(o, torch.Tensor) and o.requires_grad]


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


@dataclass(frozen=True)
class Comparison:
    """The difference of a result from eager's, both compared with f64.

    An error is the largest over the elements, in roundings: half the step of the element type at
    the largest element of the truth. At most `times` eager's is right. Where eager's is smaller
    than what any result in that type may have, `floor` counts instead: one rounding in 16 bits,
    where a kernel computes in f32 and rounds once; in others four, which is what the functions of
    CUDA and of the C library promise.
    """

    fault: str | None = None  # what no error limit allows
    ours: float = 0.0
    eager: float = 0.0
    times: float = 0.0
    floor: float = 0.0
    scale: float = 0.0

    @property
    def is_right(self) -> bool:
        """Within what eager's error or the type allows."""
        return self.fault is None and self.ours <= max(self.times * self.eager, self.floor)

    @property
    def is_by_floor(self) -> bool:
        """Right, but not by eager's error."""
        return self.is_right and self.ours > self.times * self.eager

    def __str__(self) -> str:
        text = f"{self.ours:.3g} roundings of {self.scale:.3g}, eager's {self.eager:.3g}"
        return self.fault or text


def worst(a: Comparison, b: Comparison) -> Comparison:
    """The largest errors of the same result, for two inputs."""
    ours, eager = max(a.ours, b.ours), max(a.eager, b.eager)
    return replace(a, fault=a.fault or b.fault, ours=ours, eager=eager)


def compare(ours: Any, eager: Any, exact: Any) -> Comparison:
    """A result against eager's and that of f64 arithmetic, if that is another."""
    if not isinstance(eager, torch.Tensor):
        return Comparison(None if ours == eager else f"{ours} is not {eager}")
    if ours is None:
        return Comparison("no value")
    want = to_array(eager)
    if ours.shape != want.shape:
        return Comparison(f"shape {ours.shape} is not {want.shape}")
    if ours.dtype != want.dtype:
        return Comparison(f"{ours.dtype} is not {want.dtype}")
    if want.dtype.kind not in "fc":
        return Comparison(None if np.array_equal(ours, want) else "values differ")
    if not isinstance(exact, torch.Tensor) or exact.shape != eager.shape:
        exact = eager
    truth = to_array(exact)
    # eager may overflow where the truth does not, and then either is right
    finite, theirs_finite = (np.isfinite(truth) & np.isfinite(x) for x in (ours, want))
    odd = [x[~finite] for x in (ours, want, truth)]
    if not np.all(_same(odd[0], odd[1]) | _same(odd[0], odd[2])):
        return Comparison("other infinities or nan")
    info = torch.finfo(eager.dtype)
    scale = float(np.abs(truth[finite | theirs_finite]).max(initial=0.0))
    step = max(scale * info.eps / 2, info.smallest_normal * info.eps)
    error = _largest(ours[finite], truth[finite]) / step
    theirs = _largest(want[theirs_finite], truth[theirs_finite]) / step
    times, floor = (3, 1 + 2**-7) if info.bits == 16 else (2, 4)
    # where the sample names the type, the truth is rounded to it too
    rounded = exact.dtype not in (torch.float64, torch.complex128)
    return Comparison(None, error, theirs, times, floor + rounded * times, scale)


def _same(a: np.ndarray, b: np.ndarray) -> Any:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    gap = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
    value = float(np.max(gap, initial=0.0))
    return math.inf if math.isnan(value) else value


def _kind(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)


def eager_results(run: Any, tensors: list[torch.Tensor], device: str) -> list[Any]:
    """The results of eager on a device, in host memory.

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
    if op.name in SORTS and sample.input.requires_grad:
        tensors[0] = distinct(tensors[0])
    draws = moved(tensors)
    try:
        found = compared(op, sample, imported, next(draws), run, execute, device)
        for again in draws:
            if all(c.is_right or c.fault for c in found):
                break
            others = compared(op, sample, imported, again, run, execute, device)
            found = [worst(a, b) for a, b in zip(found, others, strict=True)]
    except NoValues:
        report.passed += 1
        return
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        report.failed.append(f"run: {type(error).__name__}: {error} ({where.name})")
        return
    report.floor += [(c.ours, c.eager) for c in found if c.is_by_floor]
    bad = [f"result {i} of {len(found)}: {c}" for i, c in enumerate(found) if not c.is_right]
    if bad:
        text = f"sample {report.total}: {'; '.join(bad)}: {brief(sample.input)}"
        report.failed.append(f"{text} {brief(sample.args)} {brief(sample.kwargs)}"[:500])
    else:
        report.passed += 1


def moved(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors, then others near them.

    One result's error may be luck, ours or eager's: where ours is larger than allowed, the largest
    errors over all of these count.
    """
    yield tensors
    random = torch.Generator().manual_seed(1)
    for _ in range(DRAWS):
        yield [_moved(t, random) for t in tensors]


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Neighbouring floats of its type from 1 on, in a random order: no two are equal."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    random = torch.Generator().manual_seed(2)
    order = torch.randperm(tensor.numel(), generator=random).to(bits)
    first = torch.ones((), dtype=tensor.dtype).view(bits)
    return (first + order).view(tensor.dtype).reshape(tensor.shape)


def _moved(tensor: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """By up to 1/64, except for whole numbers, which may be labels."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        return tensor
    factor = 1 + torch.rand(tensor.shape, generator=random, dtype=torch.float64) / 64
    whole = torch.view_as_real(tensor) if tensor.is_complex() else tensor.unsqueeze(-1)
    kept = (whole == whole.round()).all(-1)
    return torch.where(kept, tensor, (tensor * factor).to(tensor.dtype))


def compared(
    op: Any,
    sample: Any,
    imported: Imported,
    tensors: list[torch.Tensor],
    run: Any,
    execute: Execute,
    device: str,
) -> list[Comparison]:
    """Each result of a sample against eager's and that of f64 arithmetic."""
    mine = run_imported(imported, tensors, execute)
    if op.name in RANDOM:
        return []
    with torch.no_grad():
        eager = eager_results(run, tensors, device)
        try:
            with floats_are_wide():
                exact = run(*map(wide, tensors), exact=True)
        except Exception:
            exact = []
    if len(exact) != len(eager):
        exact = [None] * len(eager)
    # inputs that the op wrote to come first
    mine = mine[len(mine) - len(eager) :]
    if op.name in TIES:
        mine, eager = _values_at(mine, tensors[0], sample), _values_at(eager, tensors[0], sample)
        exact = [None] * len(eager)
    return [compare(m, e, x) for m, e, x in zip(mine, eager, exact, strict=True)]


@contextmanager
def floats_are_wide() -> Iterator[None]:
    """Values that become floats, as integers do in a quotient, get double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def wide(value: Any) -> Any:
    """A tensor of real or complex numbers, or their type, in double precision."""
    if isinstance(value, torch.dtype):
        double = torch.float64 if value.is_floating_point else value
        return torch.complex128 if value.is_complex else double
    if isinstance(value, torch.Tensor):
        return value.to(wide(value.dtype))
    return value


def brief(value: Any) -> str:
    """An argument with tensors as their shapes."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={brief(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(brief, value)) + ")"
    return str(value)


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
        _floors([pair for r in reports for pair in r.floor]),
    ]
    for report in reports:
        rows.extend(f"FAILED   {report.name}: {text}" for text in report.failed)
        found = [("fallback", report.fallback), ("untraced", report.other)]
        for kind, counts in found:
            rows.extend(f"{kind} {report.name} {n}/{report.total}: {k}" for k, n in counts.items())
    return "\n".join(rows)


def _floors(pairs: list[tuple[float, float]]) -> str:
    limits = [1, 2, 4, 8]
    counts = ", ".join(f"{sum(o > n for o, _ in pairs)} of more than {n}" for n in limits)
    return f"{len(pairs)} results by the floor; roundings: {counts}"
