"""Steps that are recorded and replayed: what is written over, what is copied, what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from stack.frontends.torch.distributed import cuda_graph
from stack.frontends.torch.distributed.cuda_graph import Recorded, close_all

Tensor = torch.Tensor


class Graph:
    """An imitation of CUDA graphs: replays read and write the recorded addresses."""

    def __init__(self) -> None:
        self.again: Callable[[], None] | None = None

    def replay(self) -> None:
        assert self.again is not None
        self.again()

    def reset(self) -> None:
        self.again = None


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Graphs in the order in which they were captured; a capture computes nothing."""
    made: list[Graph] = []

    @contextmanager
    def capture(graph: Graph, capture_error_mode: str) -> Iterator[None]:
        made.append(graph)
        yield

    monkeypatch.setattr(cuda_graph.torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(cuda_graph.torch.cuda, "graph", capture)
    return made


def step(args: Sequence[Tensor]) -> list[Tensor]:
    """A loss, and a weight that becomes less."""
    weight, x = args
    return [weight @ x, weight - x]


def connect(recorded: Recorded) -> None:
    """Have the graph do again what `step` did."""
    graph, (weight, x), results = recorded.graph, recorded.places, recorded.results

    def again() -> None:
        loss, new = step((weight, x))
        results[0].copy_(loss)
        weight.copy_(new)

    assert isinstance(graph, Graph)
    graph.again = again


def test_a_weight_is_written_over_and_its_results_go_in_again(graphs: list[Graph]) -> None:
    recorded = Recorded({1: 0})
    weight, x = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    first = recorded(step, (weight, x))
    assert not graphs and torch.equal(weight, torch.tensor([1.0, 2.0]))
    held = [first[1], x]
    recorded._record(step, held)  # pyright: ignore[reportPrivateUsage]
    held[0].copy_(torch.tensor([-2.0, -2.0]))  # a capture computes nothing
    connect(recorded)
    wanted = torch.tensor([-2.0, -2.0])
    for _ in range(3):
        loss, held[0] = recorded(step, held)
        assert loss == wanted @ x
        wanted = wanted - x
        assert torch.equal(held[0], wanted)
    assert len(graphs) == 1 and held[0].data_ptr() == first[1].data_ptr()
    other = torch.tensor([1.0, 0.0])  # an input from elsewhere is copied to where the graph reads
    loss, _ = recorded(step, (held[0], other))
    assert loss == wanted @ other and torch.equal(x, torch.tensor([3.0, 4.0]))


def test_what_cannot_be_recorded_is_launched_step_by_step(graphs: list[Graph]) -> None:
    count = 0

    def waits(args: Sequence[Tensor]) -> list[Tensor]:
        nonlocal count
        count += 1
        if count == 2:
            raise RuntimeError("the host waits for the GPU")
        return step(args)

    recorded = Recorded({})
    args = (torch.ones(2), torch.ones(2))
    recorded(waits, args)
    with pytest.warns(UserWarning, match="step by step: the host waits"):
        assert recorded(waits, args)[0] == 2.0
    assert recorded(waits, args)[0] == 2.0 and len(graphs) == 1


def test_graphs_end_before_communicators_do(graphs: list[Graph]) -> None:
    recorded = Recorded({})
    args = (torch.ones(2), torch.ones(2))
    recorded(step, args)
    recorded._record(step, args)  # pyright: ignore[reportPrivateUsage]
    connect(recorded)
    close_all()
    assert graphs[0].again is None and recorded.graph is None
