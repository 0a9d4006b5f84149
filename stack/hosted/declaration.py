"""A hosted operator: one declaration defines it for every framework.

    @op("norm.rms_norm", rule="... d!, d! -> ... d!", kernels=(Kernel("cuda", launch),))
    def rms_norm(np, x, weight, *, eps: float = 1e-6):
        '''x over its root mean square along the last axis, times a weight.'''
        wide = x.astype(np.result_type(x, np.float32))
        ...

The function is the decomposition: it takes arrays by position and attributes by keyword. It is
written for NumPy (see `stack.hosted.arrays`) or, with `language="torch"` or `"jax"`, for that
framework. The axis rule is that of the IR's ops. `...` stands for any leading axes, over which the
operator is batched.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np

import stack.hosted.element_types as element_types
import stack.plugins as plugins
from stack.errors import RuleError, UsageError, unknown_name
from stack.ir.axes import Rule, parse_rule
from stack.ir.dim import Dim
from stack.ir.types import TensorType, dtype_of
from stack.wings import part

DEVICES = ("cpu", "cuda")
AUTOCASTS = ("", "f32", "low")
NUMPY = "numpy"

_ATTRIBUTES: dict[str, type] = {t.__name__: t for t in (bool, int, float, str)}


@dataclass(frozen=True)
class Kernel:
    """A hand-written kernel of an operator: a Python function that launches it.

        stack.Kernel("cuda", launch, "mine", dtypes=("f32", "bf16"))

    `launch(x, *, top)` gets arrays by position and attributes by name. On a GPU, JAX calls it with
    torch tensors too. `stack.hosted.native` compiles C and CUDA C++.

    Attributes:
        device: "cpu": `run` takes NumPy arrays; "cuda": torch tensors. Both are dense. Results must
            not alias the arguments.
        run: `(*arrays, **attributes) -> array`, or a tuple of them; "module:function" is imported
            at the first call.
        name: shown by `stackc ops` and in tables of kernels.
        dtypes: supported element types of float operands.
        refuses: `(*types, **attributes) -> reason` for unsupported operands, "" for others.
        share: measured share of the machine's peak rates; the cost model uses it.
        capturable: True if a CUDA graph can capture its launches.
        kind: "hand", or "library" if it calls one.
        arch: the only GPU architecture that it supports, as "sm_90"; "" for any.
    """

    device: str
    run: Callable[..., Any] | str
    name: str = ""
    dtypes: tuple[str, ...] = ("f32",)
    refuses: Callable[..., str] | None = None
    share: float = 1.0
    capturable: bool = False
    kind: str = "hand"
    arch: str = ""

    def __call__(self, *arrays: Any, **attributes: Any) -> Any:
        return _imported(self.run)(*arrays, **attributes)

    def why_not(self, types: Sequence[TensorType], attributes: Mapping[str, Any]) -> str:
        """Returns the reason why operands of these types are unsupported, or ""."""
        other = next(
            (t for t in types if t.dtype.is_float and t.dtype.name not in self.dtypes), None
        )
        if other is not None:
            return f"it has code for {', '.join(self.dtypes)}, not for {other.dtype}"
        if any(not isinstance(s, int) for t in types for s in t.shape):
            return "sizes are not known"
        here = _gpu_at_hand() if self.arch else ""
        if here != self.arch and here:
            return f"it has code for {self.arch}, this GPU is {here}"
        return self.refuses(*types, **attributes) if self.refuses is not None else ""


def _gpu_at_hand() -> str:
    """Returns this GPU's architecture, as `sm_90`; "" without a GPU or before torch is imported."""
    return _capability() if "torch" in sys.modules else ""


@cache
def _capability() -> str:
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@cache
def _imported(run: Callable[..., Any] | str) -> Callable[..., Any]:
    if not isinstance(run, str):
        return run
    module, _, name = run.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class Attribute:
    """A keyword of an operator: a bool, int, float or str."""

    name: str
    kind: type
    default: Any = None

    def read(self, owner: str, value: Any) -> Any:
        """Checks the type of a value for this attribute, and converts an int to float if needed.
        Raises UsageError, which names attribute and `owner`, for a wrong type.
        """
        if self.kind is float and type(value) is int:
            return float(value)
        if type(value) is not self.kind:
            raise UsageError(f"{owner}: {self.name!r} is a {self.kind.__name__}, not {value!r}")
        return value


@dataclass(frozen=True, eq=False)
class Op:
    """A declared operator. Call it on NumPy, torch or JAX arrays.

    Attributes:
        name: "family.operator"; the family is the entry point in `stack.ops` that declares it.
        rule: axes of operands and results; `...` stands for the same leading axes everywhere.
            Operands are floats unless a type follows their axes: `n: i32`, `n: int`, `n: any`.
            Integers may have limits, `n: int < v`: see `element_types`.
        decomposition: `(numpy, *arrays, **attributes)`, see the module.
        language: the framework of the decomposition: "numpy", "torch" or "jax".
        reference: a readable version of the algorithm, on NumPy arrays; default: the decomposition.
        kernels: hand-written kernels, best first.
        gradient: the operator `(*operands, *results, *gradients) -> gradients of float operands`;
            default: the derivative of the decomposition.
        autocast: under torch.autocast, floats become "f32", or the "low" type of autocast; "" keeps
            them.
        packs: `(weight [n, k], group) -> operands after the first`, on NumPy arrays, if the
            operator is a matmul with packed weights. Pass `quantize` calls it.
        values: `(*arrays, **attributes)` on NumPy arrays; raises RuleError for invalid integers
            that limits cannot express. Of other arrays it sees only the shapes.
    """

    name: str
    rule: str
    decomposition: Callable[..., Any]
    language: str = NUMPY
    reference: Callable[..., Any] | None = None
    kernels: tuple[Kernel, ...] = ()
    gradient: Op | None = None
    autocast: str = ""
    packs: Callable[..., tuple[np.ndarray[Any, Any], ...]] | None = None
    values: Callable[..., None] | None = None
    callables: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Any], repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]\w*\.[a-z]\w*", self.name):
            raise UsageError(f"an operator is called family.name, not {self.name!r}")
        if self.autocast not in AUTOCASTS or any(k.device not in DEVICES for k in self.kernels):
            raise UsageError(f"{self.name}: autocast is one of {AUTOCASTS}, devices of {DEVICES}")
        names = [(k.device, k.name) for k in self.kernels]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise UsageError(f"{self.name}: two kernels for {twice[0]} are called {twice[1]!r}")
        unknown = [asked for asked in self.asked if asked not in element_types.KINDS]
        if unknown:
            raise unknown_name(
                f"{self.name}: no elements are called", unknown[0], element_types.KINDS
            )
        axes = re.findall(r"[a-z]\w*", " ".join(self._sides[0]))
        for elements in self.elements:
            for word, names in ((elements.limit, axes), (elements.beside, self.attributes)):
                if word.isidentifier() and word not in names:
                    raise unknown_name(f"{self.name}: nothing is called", word, names)
        if len(self._sides[0]) != len(self.operands):
            count = len(self.operands)
            raise UsageError(f"{self.name} takes {count} arrays, but its rule is {self.rule!r}")

    # ---- its signature

    @property
    def doc(self) -> str:
        """The docstring of the decomposition."""
        return inspect.getdoc(self.decomposition) or ""

    @cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        found = list(inspect.signature(self.decomposition, eval_str=True).parameters.values())
        return found[1:] if self.language == NUMPY else found

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the array operands."""
        return tuple(p.name for p in self._parameters if p.kind is not p.KEYWORD_ONLY)

    @cached_property
    def attributes(self) -> dict[str, Attribute]:
        """The keyword attributes, by name."""
        found: dict[str, Attribute] = {}
        for p in self._parameters:
            if p.kind is not p.KEYWORD_ONLY:
                continue
            if p.annotation not in _ATTRIBUTES.values() or p.default is p.empty:
                raise UsageError(
                    f"{self.name}: {p.name!r} needs a default and one of the types"
                    f" {', '.join(_ATTRIBUTES)}"
                )
            found[p.name] = Attribute(p.name, p.annotation, p.default)
        return found

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all attributes with defaults. Raises UsageError naming a wrong one."""
        for name in given:
            if name not in self.attributes:
                raise unknown_name(f"{self.name} has no attribute", name, self.attributes)
        return {
            name: attribute.read(self.name, given.get(name, attribute.default))
            for name, attribute in self.attributes.items()
        }

    # ---- its rule

    @cached_property
    def _sides(self) -> tuple[list[str], list[str]]:
        left, _, right = self.rule.partition("->")
        return [element_types.split(side)[0] for side in left.split(",")], right.split(",")

    @cached_property
    def elements(self) -> tuple[element_types.Elements, ...]:
        """The required element type and value limits of each operand, parsed from the axis rule."""
        left = self.rule.partition("->")[0]
        return tuple(element_types.split(side)[1] for side in left.split(","))

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """For each operand the kind of element type that the axis rule requires, such as "float";
        see `element_types`.
        """
        return tuple(e.kind for e in self.elements)

    @property
    def results(self) -> int:
        """The number of results."""
        return len(self._sides[1])

    def batched(self) -> tuple[bool, ...]:
        """For each operand, True if the axis rule gives it the leading axes `...`."""
        return tuple("..." in side for side in self._sides[0])

    def rule_for(self, ranks: Sequence[int]) -> Rule:
        """Returns the axis rule for operands of these ranks. Names the operand in a RuleError."""
        lead: list[str] | None = None
        for name, side, rank in zip(self.operands, self._sides[0], ranks, strict=True):
            own = len(parse_rule(f"{side.replace('...', '')} ->").inputs[0])
            if rank < own or (rank > own and "..." not in side):
                least = "at least " if "..." in side else ""
                raise RuleError(
                    f"{self.name}: {name!r} has {rank} axes, its rule asks {least}{own}"
                    f" ({side.strip()})"
                )
            if "..." in side:
                found = [f"B{i}" for i in range(rank - own)]
                if lead is not None and found != lead:
                    raise RuleError(
                        f"{self.name}: {name!r} has {len(found)} leading axes, not {len(lead)}"
                    )
                lead = found
        text = f"{','.join(self._sides[0])} -> {','.join(self._sides[1])}"
        return parse_rule(text.replace("...", " ".join(lead or ())))

    def shapes(self, shapes: Sequence[tuple[Dim, ...]]) -> list[tuple[Dim, ...]]:
        """Returns the result shapes. Raises RuleError naming the argument and the rule."""
        if len(shapes) != len(self.operands):
            takes = ", ".join(self.operands)
            raise RuleError(
                f"{self.name} takes {len(self.operands)} arrays ({takes}), not {len(shapes)}"
            )
        rule = self.rule_for([len(s) for s in shapes])
        try:
            self._refuse_empty(rule, shapes)
            return rule.output_shapes(shapes)
        except RuleError as error:
            text = str(error).replace(str(rule), self.rule)
            named = re.sub(
                r"operand (\d+)", lambda m: f"argument {self.operands[int(m[1])]!r}", text
            )
            shown = ", ".join(f"{n} {list(s)}" for n, s in zip(self.operands, shapes, strict=True))
            raise RuleError(f"{self.name}({shown}): {named}") from error

    def check_elements(self, types: Sequence[TensorType]) -> None:
        """Raises RuleError naming an argument whose element type does not match the rule."""
        try:
            element_types.check(self.operands, self.asked, types)
        except RuleError as error:
            raise RuleError(f"{self.name}: {error}") from error

    @cached_property
    def has_limits(self) -> bool:
        """True if the operator restricts the values of integers."""
        return self.values is not None or any(e.relation for e in self.elements)

    def check_values(
        self,
        arrays: Sequence[Any],
        attributes: Mapping[str, Any],
        held: Callable[[Any], np.ndarray[Any, Any]] = np.asarray,
    ) -> None:
        """Raises RuleError naming an argument with integers outside its limits.

        Takes arrays of any framework, whose shapes are already checked. For arrays on a GPU it
        waits.

        Args:
            held: converts an array to NumPy, for `values`.
        """
        if not self.has_limits:
            return
        shapes = [tuple(a.shape) for a in arrays]
        sizes = self.rule_for([len(s) for s in shapes]).sizes(shapes)
        for name, elements, array in zip(self.operands, self.elements, arrays, strict=True):
            try:
                elements.refuse(array, {**sizes, **attributes})
            except RuleError as error:
                raise RuleError(f"{self.name}: {name!r} {error}") from error
        if self.values is not None:
            self.values(*map(held, arrays), **attributes)

    def _refuse_empty(self, rule: Rule, shapes: Sequence[tuple[Dim, ...]]) -> None:
        """Raises RuleError for a reduced axis of size 0, which has no result."""
        kept = {name for side in rule.outputs for axis in side for name in axis.names}
        for operand, names in self._empty(rule, shapes):
            if not kept.issuperset(names):
                shown = " ".join(names)
                raise RuleError(f"{operand!r} has size 0 along {shown!r}, which is reduced")

    def _empty(
        self, rule: Rule, shapes: Sequence[tuple[Dim, ...]]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields the operand's name and the axis names of each dim of size 0."""
        for operand, side, shape in zip(self.operands, rule.inputs, shapes, strict=True):
            yield from ((operand, axis.names) for axis, size in zip(side, shape) if size == 0)

    def why_empty(self, shapes: Sequence[tuple[Dim, ...]]) -> str:
        """Describes the first argument with an axis of size 0, or returns ""."""
        found = self._empty(self.rule_for([len(s) for s in shapes]), shapes)
        return next((f"{name!r} has size 0 along {' '.join(axis)!r}" for name, axis in found), "")

    def kernel_for(
        self, device: str, types: Sequence[TensorType], attributes: Mapping[str, Any]
    ) -> Kernel | None:
        """Returns the first kernel of a device that supports these operands."""
        return next(
            (k for k in self.kernels if k.device == device and not k.why_not(types, attributes)),
            None,
        )

    # ---- calls

    def on(self, framework: str) -> Callable[..., Any]:
        """Returns this operator as a function on arrays of the framework "torch" or "jax"."""
        if framework not in self.callables:
            self.callables[framework] = part("ops", f"{framework}-operator")(self)
        return self.callables[framework]

    def __call__(self, *arrays: Any, **attributes: Any) -> Any:
        for framework, call in self.callables.items():
            if _is_of(arrays[0], framework):
                return call(*arrays, **attributes)
        return self._first_call(arrays, attributes)

    def _first_call(self, arrays: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        for framework in plugins.names("stack.frontends"):
            if framework in sys.modules and _is_of(arrays[0], framework):
                return self.on(framework)(*arrays, **attributes)
        if self.reference is None and self.language != NUMPY:
            raise UsageError(f"{self.name} is written for {self.language}: call it on its arrays")
        from stack.hosted.nodes import decomposed

        held = [np.asarray(a) for a in arrays]
        read = self.read(attributes)
        types = tuple(TensorType(dtype_of(a), a.shape) for a in held)
        decomposed(self, types, tuple(sorted(read.items())))  # raises errors for wrong operands
        self.check_values(held, read)
        if self.reference is not None:
            return self.reference(*held, **read)
        return self.decomposition(np, *held, **read)


def _is_of(array: Any, framework: str) -> bool:
    """True if an array belongs to a framework, or is a tracer of it."""
    name = type(array).__module__
    return name == framework or name.startswith((f"{framework}.", f"{framework}lib"))
