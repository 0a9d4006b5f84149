"""Imports an ONNX model as one function: its inputs are parameters, its weights constants.

An op has a lowering in the table, or ONNX itself defines it as a function of other ops. Nodes whose
inputs are all known are evaluated by ONNX's reference implementation: shapes are then numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from stack.errors import RuleError, UsageError
from stack.frontends.files.lowering_table import sizes
from stack.frontends.files.onnx import elementwise, movement, products, reductions
from stack.frontends.files.onnx.elementwise import array_constant, element_type
from stack.frontends.files.onnx.lowering import TABLE, Call, known
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.types import DType, TensorType, dtype_of
from stack.run.input_specs import parse_input

LOADED = (elementwise, movement, products, reductions)  # they fill the table
OWN = ("", "ai.onnx")  # the domain of standard ops
Values = dict[str, Node]
Opsets = dict[str, int]


def load_model(path: Path, inputs: Sequence[str] = ()) -> Func:
    """Reads a file, with weights in files beside it, and imports it; see `import_model`."""
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as error:  # onnx raises errors of many kinds for what is no model
        first = str(error).strip().splitlines()[:1]
        raise UsageError(f"{path} is no valid ONNX model: {' '.join(first)}") from error
    return import_model(model, path.name, inputs)


def import_model(model: onnx.ModelProto, file: str = "model", inputs: Sequence[str] = ()) -> Func:
    """Imports a model.

    Args:
        file: begins the source line of each node: its number in the graph, as `model.onnx:12`.
        inputs: types of the arguments, which give free sizes their values.

    Raises:
        UnsupportedOp: names the node, the op and a way out.
        UsageError: the model has free sizes, or the inputs do not fit it.
    """
    return _Importer(model, file).function(inputs)


class _Importer:
    def __init__(self, model: onnx.ModelProto, file: str) -> None:
        self.model, self.file = model, file
        self.b = Builder()
        self.opsets: Opsets = {o.domain: o.version for o in model.opset_import}
        self.functions = {(f.domain, f.name): f for f in model.functions}

    def function(self, inputs: Sequence[str]) -> Func:
        """Imports the graph of the model."""
        graph = self.model.graph
        values: Values = {}
        call = self._call(onnx.NodeProto(name="initializer", op_type="Constant"), [], self.opsets)
        for tensor in graph.initializer:
            values[tensor.name] = array_constant(numpy_helper.to_array(tensor), call)
        own = [i for i in graph.input if i.name not in values]
        if inputs and len(inputs) != len(own):
            raise UsageError(f"{self.file} takes {len(own)} inputs, {len(inputs)} given with -i")
        params: list[Node] = []
        for number, value in enumerate(own):
            given = parse_input(inputs[number]).type if inputs else None
            params.append(param(value.name, self._type(value, given, call)))
            values[value.name] = params[-1]
        for number, node in enumerate(graph.node, 1):
            self.b.loc = (f"{self.file}:{number} {node.name}".strip(),)
            self._node(node, values, self.opsets)
        self.b.loc = ()
        return self.b.func(graph.name or "main", params, [values[o.name] for o in graph.output])

    def _type(self, value: onnx.ValueInfoProto, given: TensorType | None, call: Call) -> TensorType:
        """Returns the type of an input; free sizes are those of the given type."""
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise UsageError(f"input {value.name!r} of {self.file} has no type with a shape")
        dtype = element_type(tensor.elem_type, call)
        dims = [
            d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim
        ]
        if given is not None:
            fits = len(given.shape) == len(dims) and all(
                isinstance(d, str) or d == s for d, s in zip(dims, given.shape, strict=True)
            )
            if not fits or given.dtype is not dtype:
                raise UsageError(
                    f"input {value.name!r} of {self.file} is {dtype}{dims}, given as {given}"
                )
            return given
        free = [d for d in dims if isinstance(d, str)]
        if free:
            example = ", ".join(str(d if isinstance(d, int) else 2) for d in dims)
            raise UsageError(
                f"input {value.name!r} of {self.file} has free sizes ({', '.join(free)}): give a"
                f" type for each input, as -i '{dtype}[{example}]'"
            )
        return TensorType(dtype, tuple(d for d in dims if isinstance(d, int)))

    def _call(
        self, node: onnx.NodeProto, inputs: Sequence[Node | None], opsets: Mapping[str, int]
    ) -> Call:
        attrs = {a.name: _attribute(a) for a in node.attribute}
        version = opsets.get(node.domain, opsets.get("ai.onnx", 0))
        name = repr(node.name) if node.name else f"that computes {', '.join(node.output)}"
        used = max((i + 1 for i, o in enumerate(node.output) if o), default=1)
        return Call(node.op_type, name, version, self.b, inputs, attrs, used)

    def _node(self, node: onnx.NodeProto, values: Values, opsets: Opsets) -> None:
        """Imports one node: by ONNX's own evaluation, the table, or its definition."""
        inputs = [values[name] if name else None for name in node.input]
        call = self._call(node, inputs, opsets)
        body = self._body(node, inputs, opsets)
        arrays = [None if x is None else known(x) for x in inputs]
        is_known = all(a is not None for x, a in zip(inputs, arrays, strict=True) if x is not None)
        if node.input and is_known and node.op_type not in ("ConstantOfShape",) and not body:
            made = self._evaluated(node, arrays, opsets, call)
        elif node.domain in OWN and node.op_type in TABLE:
            made = self._lowered(call)
        elif body is not None:
            self._inline(body, node, inputs, values, opsets)
            return
        else:
            raise call.fail(
                "it has no lowering, and ONNX does not define it by other ops; write it with ops"
                f" that have one ({', '.join(sorted(TABLE))}), or import the program from torch"
            )
        for name, value in zip(node.output, made, strict=False):
            if name:
                values[name] = value
                self.b.note(value, name)

    def _lowered(self, call: Call) -> list[Node]:
        try:
            made = TABLE[call.op](call)
        except RuleError as error:
            raise call.fail(str(error)) from error
        return made if isinstance(made, list) else [made]

    def _evaluated(
        self, node: onnx.NodeProto, arrays: Sequence[Any], opsets: Opsets, call: Call
    ) -> list[Node]:
        """Computes a node on known inputs."""
        feeds = {n: a for n, a in zip(node.input, arrays, strict=True) if n}
        try:
            found = ReferenceEvaluator(node, opsets=opsets).run(None, feeds)
        except Exception as error:
            raise call.fail(f"its constant inputs do not evaluate: {error}") from error
        return [array_constant(np.asarray(a), call) for a in found]

    def _body(
        self, node: onnx.NodeProto, inputs: Sequence[Node | None], opsets: Opsets
    ) -> onnx.FunctionProto | None:
        """Returns the definition of a node by other ops: the model's own, or that of ONNX."""
        own = self.functions.get((node.domain, node.op_type))
        if own is not None or (node.domain in OWN and node.op_type in TABLE):
            return own
        version = opsets.get(node.domain, 0)
        try:
            # the stubs lack the functions of schemas
            schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)
        except onnx.defs.SchemaError:
            return None
        if schema.has_function:
            return schema.function_body
        if schema.has_context_dependent_function:
            types = [_type_proto(x).SerializeToString() for x in inputs]
            text = schema.get_context_dependent_function(node.SerializeToString(), types)
            return onnx.FunctionProto.FromString(text)
        return None

    def _inline(
        self,
        body: onnx.FunctionProto,
        node: onnx.NodeProto,
        inputs: Sequence[Node | None],
        values: Values,
        opsets: Opsets,
    ) -> None:
        """Imports the nodes of a definition with a node's inputs and attributes."""
        held: Values = {n: x for n, x in zip(body.input, inputs, strict=False) if x is not None}
        given = {a.name: a for a in body.attribute_proto} | {a.name: a for a in node.attribute}
        inner = {o.domain: o.version for o in body.opset_import} or opsets
        for part in body.node:
            made = onnx.NodeProto()
            made.CopyFrom(part)
            made.name = f"{node.name or node.op_type}/{part.name or part.op_type}"
            del made.attribute[:]
            made.attribute.extend(_with_references(part.attribute, given))
            for number, name in enumerate(made.input):
                if name and name not in held:
                    made.input[number] = ""  # an optional input that the node leaves out
            self._node(made, held, inner)
        for name, own in zip(node.output, body.output, strict=False):
            if name:
                values[name] = held[own]


def _with_references(
    attributes: Iterable[onnx.AttributeProto], given: Mapping[str, onnx.AttributeProto]
) -> Iterable[onnx.AttributeProto]:
    """Replaces attributes that refer to one of the function by its value."""
    for attribute in attributes:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in given:
            made = onnx.AttributeProto()
            made.CopyFrom(given[attribute.ref_attr_name])
            made.name = attribute.name
            yield made


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value.decode() if isinstance(value, bytes) else value


def _type_proto(node: Node | None) -> onnx.TypeProto:
    """Returns the type of a value as ONNX writes it; an empty one for an input that is left out."""
    if node is None:
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(_numbers()[node.dtype], sizes(node))


@cache
def _numbers() -> dict[DType, int]:
    """Returns the number that ONNX has for each element type, also for those kept as bytes."""
    found: dict[DType, int] = {}
    for number in onnx.helper.get_all_tensor_dtypes():
        with suppress(KeyError, TypeError):  # types that the IR does not have
            found[dtype_of(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(number)))] = number
    return found
