"""ONNX models are imported, and compute what ONNX's own reference implementation computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from stack.cli import main  # noqa: E402
from stack.errors import StackError, UnsupportedOp, UsageError  # noqa: E402
from stack.frontends.files.onnx.model import import_model  # noqa: E402
from stack.ir.verifier import verify  # noqa: E402

RNG = np.random.default_rng(0)
F = TensorProto.FLOAT


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    nodes: Sequence[Any], args: dict[str, np.ndarray], weights: dict[str, np.ndarray], opset: int
) -> Any:
    """A model whose result is `y`."""
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in args.items()}
    inputs = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in args.items()]
    held = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    result = onnx.ValueInfoProto(name="y")
    graph = helper.make_graph(nodes, "main", inputs, [result], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def check(model: Any, args: dict[str, np.ndarray], tolerance: float = 2e-5) -> None:
    func = import_model(model)
    verify(func)
    found = func.interpret(*args.values())
    results: Any = ReferenceEvaluator(model).run(None, args)
    (want,) = results
    assert found.shape == want.shape and found.dtype == want.dtype
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


X = normal(2, 4, 6, 6)
ROWS = normal(3, 5)
PADDED = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
GROUPED = {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}
SWAPPED = {"transA": 1, "transB": 1, "alpha": 0.5}
# op, inputs that are arguments, inputs that are weights, attributes, opset
CASES: list[tuple[str, list[np.ndarray], list[np.ndarray], dict[str, Any], int]] = [
    ("Add", [normal(2, 1, 3), normal(4, 1)], [], {}, 20),
    ("Pow", [np.abs(ROWS), ints(2).astype(np.float32)], [], {}, 20),
    ("Mod", [np.array([-7, 7, 5], np.int32), np.array([3, -3, 5], np.int32)], [], {}, 20),
    ("Max", [normal(3), normal(2, 3), normal(1)], [], {}, 20),
    ("Clip", [ROWS], [np.array(-0.5, np.float32), np.array(0.5, np.float32)], {}, 20),
    ("LeakyRelu", [ROWS], [], {"alpha": 0.3}, 20),
    ("Gelu", [ROWS], [], {"approximate": "tanh"}, 20),
    ("Elu", [ROWS], [], {"alpha": 1.5}, 20),
    ("HardSwish", [ROWS], [], {}, 20),
    ("Cast", [ROWS * 3], [], {"to": TensorProto.INT64}, 20),
    ("MatMul", [normal(2, 1, 3, 4), normal(5, 4, 2)], [], {}, 20),
    ("MatMul", [normal(4), normal(4)], [], {}, 20),
    ("MatMul", [normal(2, 3, 4)], [normal(4, 5)], {}, 20),
    ("Gemm", [normal(4, 3)], [normal(5, 4), normal(5)], SWAPPED, 20),
    ("Conv", [X], [normal(6, 2, 3, 3), normal(6)], GROUPED, 20),
    ("Conv", [X], [normal(3, 4, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, 20),
    ("MaxPool", [X], [], {**PADDED, "strides": [2, 2], "ceil_mode": 1}, 20),
    ("AveragePool", [X], [], PADDED, 20),
    ("AveragePool", [X], [], {**PADDED, "count_include_pad": 1}, 20),
    ("GlobalAveragePool", [X], [], {}, 20),
    ("BatchNormalization", [X], [normal(4), normal(4), normal(4), np.abs(normal(4))], {}, 20),
    ("LayerNormalization", [ROWS], [normal(5), normal(5)], {}, 20),
    ("InstanceNormalization", [X], [normal(4), normal(4)], {}, 22),
    ("GroupNormalization", [X], [normal(4), normal(4)], {"num_groups": 2}, 21),
    ("Softmax", [ROWS], [], {}, 20),
    ("Softmax", [X], [], {"axis": 3}, 11),
    ("LogSoftmax", [ROWS], [], {"axis": 0}, 20),
    ("ReduceSum", [X], [ints(1, -1)], {"keepdims": 0}, 20),
    ("ReduceMean", [X], [], {"axes": [2, 3]}, 13),
    ("ReduceL2", [ROWS], [ints(1)], {}, 20),
    ("ArgMax", [ROWS], [], {"axis": 1, "keepdims": 0}, 20),
    ("CumSum", [ROWS], [np.array(1, np.int64)], {"reverse": 1}, 20),
    ("Reshape", [X], [ints(0, -1, 4)], {}, 20),
    ("Squeeze", [normal(1, 3, 1)], [ints(0)], {}, 20),
    ("Unsqueeze", [ROWS], [ints(0, -1)], {}, 20),
    ("Flatten", [X], [], {"axis": 2}, 20),
    ("Transpose", [X], [], {"perm": [0, 2, 3, 1]}, 20),
    ("Expand", [normal(3, 1)], [ints(2, 1, 4)], {}, 20),
    ("Tile", [ROWS], [ints(2, 3)], {}, 20),
    ("Slice", [ROWS], [ints(-1, 1), ints(-9, 4), ints(0, 1), ints(-2, 2)], {}, 20),
    ("Pad", [ROWS], [ints(1, 0, 0, 2), np.array(3, np.float32)], {}, 20),
    ("Gather", [ROWS], [ints(0, -1)], {"axis": 1}, 20),
    ("Gather", [ROWS, np.array([[0, -1], [2, 1]], np.int64)], [], {}, 20),
    ("Where", [ROWS > 0, ROWS, normal(1, 5)], [], {}, 20),
    ("Trilu", [normal(4, 4)], [np.array(1, np.int64)], {"upper": 0}, 20),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[4]}")
def test_an_op(case: tuple[str, list[np.ndarray], list[np.ndarray], dict[str, Any], int]) -> None:
    op, args, weights, attrs, opset = case
    given = {f"x{i}": a for i, a in enumerate(args)}
    held = {f"w{i}": a for i, a in enumerate(weights)}
    node = helper.make_node(op, [*given, *held], ["y"], name="it", **attrs)
    check(model_of([node], given, held, opset), given)


def block() -> tuple[Any, dict[str, np.ndarray]]:
    """Attention with shapes that are computed in the graph, as exporters write it."""
    weights = {"w": normal(8, 24) / 3, "o": normal(8, 8) / 3, "heads": ints(2), "each": ints(4)}
    weights |= {"start": ints(0), "end": ints(2), "split": ints(8, 8, 8)}
    n = helper.make_node
    nodes = [
        n("Shape", ["x"], ["whole"]),
        n("Slice", ["whole", "start", "end"], ["rows"]),
        n("Concat", ["rows", "heads", "each"], ["shape"], axis=0),
        n("MatMul", ["x", "w"], ["qkv"]),
        n("Split", ["qkv", "split"], ["q0", "k0", "v0"], axis=-1),
    ]
    for name in "qkv":
        nodes.append(n("Reshape", [f"{name}0", "shape"], [f"{name}1"]))
        perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(n("Transpose", [f"{name}1"], [name], perm=perm))
    nodes += [
        n("MatMul", ["q", "k"], ["scores"]),
        n("Softmax", ["scores"], ["p"], axis=-1),
        n("MatMul", ["p", "v"], ["a"]),
        n("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]),
        n("Reshape", ["b", "whole"], ["c"]),
        n("MatMul", ["c", "o"], ["d"]),
        n("Add", ["d", "x"], ["y"]),
    ]
    args = {"x": normal(2, 5, 8)}
    return model_of(nodes, args, weights, 18), args


def test_shapes_are_computed_when_a_model_is_imported() -> None:
    model, args = block()
    check(model, args)
    assert not {"gather", "concat"} & {n.op for n in import_model(model).nodes}


def test_functions_of_a_model() -> None:
    n = helper.make_node
    twice = helper.make_function(
        "own", "Scaled", ["a"], ["b"],
        [n("Constant", [], ["c"], value_float=3.0), n("Mul", ["a", "c"], ["b"])],
        [helper.make_opsetid("", 20)],
    )  # fmt: skip
    args = {"x": ROWS}
    model = model_of([n("Scaled", ["x"], ["y"], domain="own")], args, {}, 20)
    model.functions.append(twice)
    model.opset_import.append(helper.make_opsetid("own", 1))
    check(model, args)


def test_errors_name_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = {"x": normal(1, 1, 4, 4)}
    odd = helper.make_node("LRN", ["r"], ["y"], name="odd", size=3)
    nodes = [helper.make_node("Relu", ["x"], ["r"]), odd]
    with pytest.raises(UnsupportedOp, match=r"LRN of opset 20, node 'odd'  \(model:2"):
        import_model(model_of(nodes, args, {}, 20))
    shape = helper.make_node("Reshape", ["x", "s"], ["y"], name="moved")
    with pytest.raises(UnsupportedOp, match="depends on the arguments"):
        import_model(model_of([shape], {**args, "s": ints(16)}, {}, 20))
    like = helper.make_node("CastLike", ["x", "l"], ["y"])
    bytes_held = np.zeros(1, onnx.helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN))
    with pytest.raises(UnsupportedOp, match="elements of storage types are bytes"):
        import_model(model_of([like], {**args, "l": bytes_held}, {}, 20))
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    assert main(["dump", str(path)]) == 2
    assert "broken.onnx is no valid ONNX model" in capsys.readouterr().err


def test_free_sizes_and_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = block()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, ["n", 5, 8]))
    with pytest.raises(UsageError, match=r"free sizes \(n\).*-i 'f32\[2, 5, 8\]'"):
        import_model(model)
    path, run = tmp_path / "block.onnx", tmp_path / "r"
    onnx.save(model, path)
    assert main(["dump", str(path), "-i", "f32[3,5,8]", "--check", "-o", str(run)]) == 0
    assert main(["show", str(run), "imported"]) == 0
    assert "block.onnx:4" in capsys.readouterr().out


def test_models_that_torch_exports(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    net: Any = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(64, 5), torch.nn.GELU(),
        torch.nn.LayerNorm(5), torch.nn.Softmax(-1),
    ).eval()  # fmt: skip
    x, path = torch.randn(2, 3, 8, 8), tmp_path / "net.onnx"
    torch.onnx.export(net, (x,), str(path), dynamo=True, verbose=False)
    found = import_model(onnx.load(path)).interpret(x.numpy())
    np.testing.assert_allclose(found, net(x).detach().numpy(), atol=1e-5)


def read(value: Any) -> Any:
    """A value of ONNX's tests; some are messages, which become arrays."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


@pytest.mark.slow
def test_the_models_that_onnx_tests_itself_with() -> None:
    """No result is wrong; ops and forms without a lowering are refused by name."""
    from onnx.backend.test.case.node import collect_testcases

    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for case in collect_testcases(None):
        data: Any = case.data_sets
        model: Any = case.model
        arguments, wanted = ([*map(read, side)] for side in data[0])
        try:
            func = import_model(model)
            found = func.interpret(*map(np.asarray, arguments))
        except (StackError, TypeError):
            outcomes["refused"] += 1
            continue
        results = found if isinstance(found, tuple) else (found,)
        for have, want in zip(results, wanted, strict=True):
            tolerance = 2e-2 if want.dtype.name == "bfloat16" else 2e-3
            wide = want.astype(np.float32) if want.dtype.name == "bfloat16" else want
            if np.shape(have) != want.shape or not np.allclose(have, wide, tolerance, 1e-3, True):
                wrong.append(case.name)
        outcomes["imported"] += 1
    assert not wrong
    assert outcomes["imported"] > 800
