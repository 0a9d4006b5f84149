"""Graphs for Graphviz, Netron and Model Explorer: modules are clusters, edges have types."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stack.cli import main
from stack.errors import UsageError
from stack.ir.parser import parse
from stack.ir.traits import is_item
from stack.report.graph_dot import dot_text, quoted
from stack.report.graph_model_explorer import model_explorer_text
from stack.report.module_graph import graph_of, write_graph

FUNC = parse(
    """func @net(%x: f32[8, 16], %layers.0.w: f32[16, 4]) -> (f32[8, 4], f32[8]) at tensor {
  %y = dot(%x, %layers.0.w) {rule="a k, k b -> a b"} : f32[8, 4] from "m.py:3 layers.0"
  %z = mul(%y, 2:f32) : f32[8, 4] from "m.py:3 layers.0.scale", "m.py:4 layers.0.act"
  %g = fusion(%z) {kind="reduction", name="exp_reduce"} : (f32[8, 4], f32[8]) from "m.py:5 layers.1" {(%p0: f32[8, 4])
    %e = exp(%p0) : f32[8, 4] from "m.py:5 layers.1"
    %s = reduce(%e) {axes=[1], kind="sum"} : f32[8] from "m.py:5 layers.1"
    return %e, %s
  }
  %a = item(%g) {index=0} : f32[8, 4] from "m.py:5 layers.1"
  %b = item(%g) {index=1} : f32[8] from "m.py:5 layers.1"
  %r = add(%a, %z) : f32[8, 4] from "m.py:6"
  return %r, %b
}"""  # noqa: E501
)


def test_nodes_are_in_the_innermost_module_that_contains_them() -> None:
    found = {node.id: node.module for node in graph_of(FUNC).nodes}
    assert found == {
        "%x": (),
        "%layers.0.w": ("layers", "0"),
        "dot %y": ("layers", "0"),
        "mul %z": ("layers", "0"),  # from two modules in it
        "fusion %g": ("layers", "1"),
        "add %r": (),
        "return 0": (),
        "return 1": (),
    }


def test_a_result_of_several_and_constants() -> None:
    nodes = {node.id: node for node in graph_of(FUNC).nodes}
    (left, right) = nodes["add %r"].inputs
    assert (left.source, left.result, left.type) == (nodes["fusion %g"].id, 0, "f32[8, 4]")
    assert right.source == nodes["mul %z"].id
    assert ("operand 1", "2.0") in nodes["mul %z"].attrs
    assert ("ops", "exp, reduce") in nodes["fusion %g"].attrs
    assert ("source", "m.py:3, m.py:4") in nodes["mul %z"].attrs
    last = graph_of(FUNC).nodes[-1]
    assert [(e.result, e.type) for e in last.inputs] == [(1, "f32[8]")]


def test_dot_has_every_edge_with_its_type_and_nested_clusters() -> None:
    graph = graph_of(FUNC)
    text = dot_text(graph)
    edges = re.findall(r'^  "(.*)" -> "(.*)" \[label="(.*)"\];$', text, re.MULTILINE)
    assert edges == [(e.source, n.id, e.type) for n in graph.nodes for e in n.inputs]
    read = [a for n in FUNC.nodes if not is_item(n) for a in n.args if a.op != "const"]
    assert len(edges) == len(read) + len(FUNC.results)
    depth, at = 0, dict[str, int]()
    for line in text.splitlines():
        if line.endswith("{"):
            depth += 1
        elif line.strip() == "}":
            depth -= 1
        elif found := re.match(r'\s+"([^"]*)" \[tooltip=', line):
            at[found[1]] = depth
    assert depth == 0
    assert (at["%x"], at["dot %y"], at["fusion %g"]) == (1, 3, 3)
    assert 'subgraph "cluster_layers" {' in text
    assert 'subgraph "cluster_layers.0" {' in text


def test_quotes_in_dot() -> None:
    assert quoted('a "b"\\c\nd') == "\"a 'b'\\\\c\\nd\""


def test_model_explorer() -> None:
    (graph,) = json.loads(model_explorer_text(graph_of(FUNC)))["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    for node in graph["nodes"]:
        assert set(node) == {
            *("id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata"),
        }
        for edge in node["incomingEdges"]:
            results = nodes[edge["sourceNodeId"]]["outputsMetadata"]
            assert edge["sourceNodeOutputId"] in [r["id"] for r in results]
    by_label = {node["label"]: node for node in graph["nodes"]}
    assert by_label["dot %y"]["namespace"] == "layers/0"
    shapes = [r["attrs"][0]["value"] for r in by_label["fusion %g"]["outputsMetadata"]]
    assert shapes == ["f32[8, 4]", "f32[8]"]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, run = tmp_path / "f.stack", tmp_path / "r"
    file.write_text(
        "func @f(%x: f32[8]) -> (f32[8]) at tensor {\n"
        '  %y = sqrt(%x) : f32[8] from "m.py:3 head"\n  return %y\n}\n'
    )
    dot, more = tmp_path / "g.dot", tmp_path / "g.json"
    assert main(["dump", str(file), "-o", str(run), "--graph", str(dot)]) == 0
    assert '"sqrt %y" [tooltip=' in dot.read_text()
    assert main(["show", str(run), "fused", "--graph", str(more)]) == 0
    (graph,) = json.loads(more.read_text())["graphs"]
    assert [n["label"].partition(" ")[0] for n in graph["nodes"]] == ["%x", "fusion", "return"]
    assert main(["show", str(run), "--graph", str(tmp_path / "g.png")]) == 2
    assert ".dot (Graphviz, Netron) or .json (Model Explorer)" in capsys.readouterr().err


def test_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.dot"):
        write_graph(FUNC, tmp_path / "graph.svg")
