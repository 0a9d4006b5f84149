"""Import of a functional FX graph of ATen ops as one function of the IR."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.node import map_arg

from stack.errors import NoElementType, StackError, UnsupportedOp
from stack.frameworks.torch_private import HigherOrderOperator, without_modes
from stack.frontends.torch.aten.bounds import joined_promises
from stack.frontends.torch.aten.complex_numbers import joined
from stack.frontends.torch.aten.lowering import Context, IndexCheck, NotLowered, Promise
from stack.frontends.torch.aten.strided_access import last_offset, read_strided, write_strided
from stack.frontends.torch.importer.border import (
    Border,
    Order,
    example_of,
    inverse,
    physical_order,
    storage_root,
)
from stack.frontends.torch.importer.calls import Calls, kinds_of_values
from stack.frontends.torch.importer.complex_arguments import is_input_in_pairs
from stack.frontends.torch.importer.control_flow import CONTROL
from stack.frontends.torch.importer.dims import Sizes, is_size, number_value
from stack.frontends.torch.importer.errors import raise_with_ops
from stack.frontends.torch.importer.origins import source_line, variable_names
from stack.frontends.torch.importer.strided_arguments import (
    Apart,
    Part,
    memory_order,
    storage_until,
)
from stack.frontends.torch.tensors.arrays import STACK_DTYPE, dtype_of
from stack.ir.builder import Builder, constant, param
from stack.ir.dim import Dim, Expr, add, less_equal
from stack.ir.func import Func
from stack.ir.node import Node, unique_name, walk
from stack.ir.types import TensorType
from stack.rewrite.engine import inline_block

_LARGE_CONSTANT = 64
_PLAIN = frozenset({t for t, d in STACK_DTYPE.items() if d.kind in "biuf"})
_NUMBERS = int | torch.SymInt | torch.SymFloat | torch.SymBool
_STRIDED_WRITES = frozenset({
    torch.ops.aten.as_strided_scatter.default, torch.ops.prims.as_strided_scatter.default,
})  # fmt: skip
_STRIDED = _STRIDED_WRITES | {
    torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default,
}  # fmt: skip
# ops that copy the whole storage of their operand, gaps between its elements included
_COPIES = _STRIDED_WRITES | {
    torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default,
    torch.ops.aten.diagonal_scatter.default, torch.ops.aten.copy.default,
}  # fmt: skip


@dataclass
class Imported:
    """A graph imported as a function.

    Attributes:
        func: its results are the tensors among `outputs`, in order.
        inputs: for each parameter, the position of its placeholder, a lifted constant tensor, or
            a node of the graph that is a view of placeholders.
        orders: for each parameter whose placeholder is not row-major: the order of its axes in
            memory, or its strides if it is not dense; else None.
        outputs: results of the graph: each a node, a size, a number or None.
        checks: bounds of index inputs.
        sizes: placeholders that are sizes: position to size expression.
        why: for each opaque op, the reason.
        symbols: assumptions of tracing about symbolic sizes.
        devices: the kinds of devices of the traced values.
        promises: conditions checked after a run; `func` returns their bools after the tensors.
    """

    func: Func
    inputs: list[int | torch.Tensor | FxNode]
    orders: list[Order | Apart | None]
    outputs: list[Any]
    checks: list[IndexCheck]
    sizes: dict[int, Dim]
    symbols: Sizes
    devices: set[str]
    why: dict[str, str] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)

    def notes(self) -> dict[str, str]:
        """Returns notes for the record: opaque ops, and what calls check."""
        found = {
            "fallbacks": [f"{op}: {why}" for op, why in sorted(self.why.items())],
            "checked indices": list(map(_check_text, self.checks)),
            "checked after a run": [p.text for p in self.promises],
        }
        return {title: "\n".join(lines) for title, lines in found.items() if lines}


def _check_text(check: IndexCheck) -> str:
    """Returns the text of an index check: the op, the parameter, and the bounds of its values."""
    besides = f", or {', '.join(map(str, check.besides))}" if check.besides else ""
    name = check.param.attrs["name"]
    return f"{check.what}: {name} is between {check.low} and {check.high}{besides}"


def import_graph(
    gm: GraphModule,
    name: str,
    param_names: Mapping[str, str] | None = None,
    order: Sequence[int] | None = None,
    trusted: bool = False,
    border: Border | None = None,
) -> Imported:
    """Import a functional graph of ATen ops.

    Args:
        param_names: readable names for placeholders.
        order: positions of placeholders in the order of the parameters; default: graph order.
        trusted: true if indices were checked before, as for a backward graph.
        border: memory layouts of arguments and results; the results are then its fresh values.
            Default: parameters and results have the shapes of the graph.
    """
    importer = _Importer(gm, param_names or {}, trusted, border)
    try:
        return importer.run(name, order)
    except StackError as error:
        raise_with_ops(error, gm, importer.node)


def import_values(
    gm: GraphModule, name: str, param_names: Mapping[str, str], wanted: Sequence[FxNode]
) -> tuple[Func, dict[FxNode, Any], dict[str, str]]:
    """Imports some values of a functional graph of ATen ops as a function.

    Returns the function, a map of nodes to IR values, and for each opaque op the reason.
    """
    importer = _Importer(gm, param_names, True, None)
    try:
        params = importer.values()
    except StackError as error:
        raise_with_ops(error, gm, importer.node)
    results = [importer.env[n] for n in wanted]
    return importer.b.func(name, params, results), importer.env, importer.why


class _Importer(Calls):
    def __init__(
        self, gm: GraphModule, param_names: Mapping[str, str], trusted: bool, border: Border | None
    ) -> None:
        self.b = Builder()
        self.cx = Context(self.b, trusted=trusted)
        self.sizes = Sizes()
        types, self.devices = kinds_of_values(gm)
        self.is_plain = types <= _PLAIN
        self.env: dict[FxNode, Any] = {}
        self.why: dict[str, str] = {}
        self.effects: list[Node] = []
        self.node: FxNode | None = None  # the call that is being imported
        self.gm = gm
        self.border = border
        self.param_names = param_names
        self.names: set[str] = set()
        self.counts: dict[str, int] = {}
        self.lifted: dict[str, tuple[Node, torch.Tensor]] = {}
        self.views: dict[FxNode, Node] = {}
        self.orders: dict[Node, Order | Apart] = {}
        self.variables = variable_names(gm.graph)
        self.assigned: set[Node] = set()

    def run(self, name: str, order: Sequence[int] | None) -> Imported:
        holders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        places = range(len(holders)) if order is None else order
        sizes: dict[int, Dim] = {}
        inputs: list[int | torch.Tensor | FxNode] = []
        params: list[Node] = []
        for place in places:
            value = self._placeholder(holders[place])
            if isinstance(value, Node):
                params.append(value)
                inputs.append(place)
                value = self._as_given(value) if value in self.orders else value
            elif isinstance(value, int | Expr):
                sizes[place] = value
            self.env[holders[place]] = value
        late = self.border.late if self.border is not None else ()
        for node in self.gm.graph.nodes:
            if node.op not in ("placeholder", "output") and node not in late:
                self.env[node] = self._node(node)
        params = [p for p, _ in self.lifted.values()] + params + list(self.views.values())
        inputs = [*(t for _, t in self.lifted.values()), *inputs, *self.views]
        orders = [self.orders.get(p) for p in params]
        outputs = self._outputs()
        results = [o for o in outputs if isinstance(o, Node)]
        promises = joined_promises(self.cx) if self.cx.promises else []
        func = self.b.func(name, params, [*results, *(p.holds for p in promises)])
        checks = list(dict.fromkeys(self.cx.checks))
        return Imported(
            func, inputs, orders, outputs, checks, sizes, self.sizes, self.devices, self.why,
            promises,
        )  # fmt: skip

    def values(self) -> list[Node]:
        """Import all nodes; returns the parameters."""
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = self._placeholder(node)
            elif node.op != "output":
                self.env[node] = self._node(node)
        given = [self.env[n] for n in self.gm.graph.find_nodes(op="placeholder")]
        return [p for p, _ in self.lifted.values()] + given

    # ---- graphs inside of graphs

    def nested(self, graph: GraphModule) -> _Importer:
        """Returns an importer for a nested graph, which becomes a block."""
        inner = _Importer(graph, {}, self.cx.trusted, None)
        inner.cx.is_inside = True
        inner.is_plain &= self.is_plain
        inner.sizes, inner.why = self.sizes, self.why
        return inner

    def results(self, given: Sequence[Any]) -> list[Node]:
        """Returns the results of the graph for these operands; its promises are in `cx.promises`.

        Raises:
            StackError: for large constants, which a block cannot contain.
        """
        operands = iter(given)
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                operand = next(operands)
                size = node.meta.get("val")
                self.env[node] = self.sizes.dim(size) if is_size(size) else operand
            elif node.op != "output":
                try:
                    self.env[node] = self._node(node)
                except NoElementType as error:
                    raise error.at(str(node.target), source_line(node)) from error
        if self.lifted:
            raise StackError("large constants inside of a loop or a condition are not supported")
        return self._outputs()

    def _outputs(self) -> list[Any]:
        if self.border is None:
            made: Any = self.gm.graph.output_node().args[0]
            made = made if isinstance(made, list | tuple) else [made]
            made = list(map(self._value, made))
            return made if self.is_plain else [joined(self.cx, value) for value in made]
        pairs = zip(self.border.fresh, self.border.orders, strict=True)
        return [self.cx.transpose(self.env[f], o) if o else self.env[f] for f, o in pairs]

    def _placeholder(self, node: FxNode) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if value.is_complex() and self.border is not None:
                return None  # its real parts are a parameter
            hint = self.param_names.get(node.name, node.name)
            name = unique_name(hint, self.names, self.counts)
            try:
                type_ = self._want(value)
            except NoElementType as error:
                raise error.at(f"argument {hint}") from error
            order = memory_order(value) if self.border is not None else None
            if order is None or order == tuple(range(type_.rank)):
                return param(name, type_)
            held = (order.span,) if isinstance(order, Apart) else [type_.shape[i] for i in order]
            made = param(name, type_.with_shape(tuple(held)))
            self.orders[made] = order
            return made
        if is_size(value):
            return self.sizes.dim(value)
        return value

    def _as_given(self, value: Node) -> Node:
        """Returns a parameter with its axes in the order in which torch's graph sees them.

        Programs get arrays with their axes in memory order, or as flat memory if they are not
        dense.
        """
        order = self.orders[value]
        is_dense = not isinstance(order, Apart)
        return self.cx.transpose(value, inverse(order)) if is_dense else order.read(self.cx, value)

    def _strided(self, node: FxNode) -> Any:
        """Imports `as_strided` or a write by strides, which index the storage of their operand."""
        operand: Any = node.args[0]
        owner, is_write = storage_root(operand), node.target in _STRIDED_WRITES
        if self._is_given(owner) and not is_write:
            return self._view(node, node.name)
        part = _layout(operand) if is_write else _part(node)
        try:
            flat = self._storage(node, []) if is_write else self._storage(owner, [part])
            return read_strided(self.cx, flat, *self._sizes(part))
        except NotLowered as error:
            raise UnsupportedOp([(str(node.target), self.b.loc)], str(error)) from error

    def _storage(self, owner: FxNode, parts: Sequence[Part]) -> Node:
        """Builds the flat storage that a value owns, from its start to the end of these parts.

        Torch makes the storage of an argument, as a view. Raises NotLowered if the value neither is
        a storage without gaps nor has a copy of the storage of such a value.
        """
        flat = self._dense(owner, parts) if owner in self.env else None
        is_known = not any(isinstance(offset, torch.SymInt) for _, _, offset in parts)
        if flat is None and self._is_given(owner) and is_known and self.node is not None:
            args: Any = owner, tuple(parts)
            with self.gm.graph.inserting_before(self.node):
                node = self.gm.graph.call_function(storage_until, args)
            args = map_arg(args, lambda n: n.meta["val"])
            node.meta["val"] = storage_until(*args)
            return self._view(node, f"storage_of_{owner.name}")
        if flat is None and owner.target in _COPIES:
            is_part = owner.target in _STRIDED_WRITES
            part = _part(owner) if is_part else _layout(owner)
            source = self._value(owner.args[1]) if is_part else self.env[owner]
            operand: Any = owner.args[0]
            flat = self._storage(storage_root(operand), [*parts, part] if is_part else parts)
            return write_strided(self.cx, flat, source, *self._sizes(part)[1:])
        if flat is None:
            raise NotLowered("the memory that it reads or writes is not one dense value")
        return flat

    def _dense(self, owner: FxNode, parts: Sequence[Part]) -> Node | None:
        """Returns the elements of a value if they are its storage up to the end of these parts."""
        held = example_of(owner)
        order = physical_order(held) if held is not None else None
        start = _offset(owner) if order is not None else None
        if order is None or not isinstance(start, int) or start != 0:
            return None
        flat = self.cx.transpose(self.env[owner], order)
        count, may_be_part = flat.tensor.size, owner.target in _COPIES or self._is_given(owner)
        inside = [less_equal(add(last_offset(*self._sizes(part)), 1), count) for part in parts]
        if False in inside or (may_be_part and None in inside):
            return None
        return self.cx.reshape(flat, [count])

    def _is_given(self, owner: FxNode) -> bool:
        """True if a value is an argument with its storage."""
        return owner.op == "placeholder" and self.border is not None

    def _sizes(self, part: Part) -> tuple[list[Dim], list[Dim], Dim]:
        shape, strides, offset = part
        return [self._size(v) for v in shape], [self._size(v) for v in strides], self._size(offset)

    def _view(self, node: FxNode, hint: str) -> Node:
        """Returns a new parameter for a view of an argument, which torch makes before a call."""
        name = unique_name(hint, self.names, self.counts)
        self.views[node] = param(name, self._want(node.meta["val"]))
        return self.views[node]

    # ---- nodes

    def _node(self, node: FxNode) -> Any:
        self.node = node
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op != "call_function":
            raise StackError(f"the graph has a {node.op} of {node.target}, not only ATen ops")
        value = node.meta.get("val")
        if node.target is operator.getitem:
            source, index = (self._value(a) for a in node.args)
            self._name(source[index], node)
            return source[index]
        func = getattr(node.target, "func", None)
        if isinstance(func, Func):
            made = {str(n.attrs["target"]).removeprefix("torch:") for n in _opaque(func)}
            self.why |= {op: why for op, why in node.target.why.items() if op in made}  # pyright: ignore
            return inline_block(func.body, self._value(node.args), self.b)
        self.b.loc = source_line(node)
        number = number_value(self.b, self.sizes, value) if isinstance(value, _NUMBERS) else None
        if number is not None:
            return number
        if node.target in _STRIDED:
            return self._strided(node)
        if self.border is not None and not self.is_plain and is_input_in_pairs(node):
            return self._view(node, self.param_names.get(storage_root(node).name, node.name))
        control = CONTROL.get(str(node.target))
        if isinstance(node.target, HigherOrderOperator) and control is not None:
            self.cx.want = self._want(value)
            out = control(self, *map(self._value, node.args))
        else:
            out = self._call(node, value)
        self._name(out, node)
        return out

    def _name(self, made: Any, node: FxNode) -> None:
        """Names a value after its FX node, and so the value under a final reshape.

        A user's variable that the source line assigns the value to replaces this name. If two
        variables have the same value, the first one names it.
        """
        own = node.name.removeprefix("_unsafe").lstrip("_")
        items = made if isinstance(made, tuple) else (made,)
        for i, item in enumerate(items if node.target is not operator.getitem else ()):
            if isinstance(item, Node):
                name = f"{own}.{i}" if isinstance(made, tuple) else own
                if item.op == "reshape":
                    self.b.names.setdefault(item.args[0], name)
                self.b.names.setdefault(item, name)
        name = self.variables.get(node)
        if name is not None and isinstance(made, Node) and made not in self.assigned:
            self.assigned.add(made)
            self.b.names[made] = name

    def _attribute(self, name: str) -> Any:
        value: Any = self.gm
        for part in name.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        if name in self.lifted:
            return self.lifted[name][0]
        # must be a real tensor, even if torch is tracing around this code
        with without_modes():
            return self._constant(name, value.detach())

    def _constant(self, name: str, value: torch.Tensor) -> Node:
        """Returns a small tensor as a constant and a large one as a bound parameter."""
        dtype = dtype_of(value.dtype)
        if value.numel() <= _LARGE_CONSTANT:
            held = value.cpu().float() if dtype.name == "bf16" else value.cpu()
            held = held.view(torch.uint8) if dtype.kind == "s" else held
            return constant(held.numpy(), dtype)
        type_ = TensorType(dtype, tuple(value.shape))
        node = param(unique_name(name, self.names, self.counts), type_)
        self.lifted[name] = (node, value)
        return node


def _opaque(func: Func) -> Iterator[Node]:
    """Yields the opaque nodes of a function, including those in nested blocks."""
    return (node for _, node in walk(func.body) if node.op == "opaque")


def _part(node: FxNode) -> Part:
    """Returns the view that a call by strides reads or writes."""
    operand, *args = node.args[:1] + node.args[1 + (node.target in _STRIDED_WRITES) :]
    size, stride, offset = [*args, node.kwargs.get("storage_offset")][:3]
    return size, stride, _offset(operand) if offset is None else offset


def _layout(node: FxNode) -> Part:
    value = node.meta["val"]
    return tuple(value.shape), tuple(value.stride()), _offset(node)


def _offset(node: Any) -> Any:
    """Returns the storage offset of a value. Example values of copies of storages begin at 0."""
    root, offset = storage_root(node), node.meta["val"].storage_offset()
    if root.target not in _COPIES:
        return offset
    return _offset(root.args[0]) + offset - root.meta["val"].storage_offset()
