"""Every form of a convolution: what torch is called with, against sums over the window."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from device_backend import BACKEND, with_stages
from kernel_cases import Spec, random_array
from test_programs import check, func_of
from torch.utils._python_dispatch import TorchDispatchMode

from stack.backends.device.torch_device import TorchDevice
from stack.backends.runtime.program import BlockProgram
from stack.ir import Builder, Node
from stack.run.compile import compile_func

FORMS = [
    {"stride": (2, 1), "low": (1, 0), "high": (0, 2)},
    {"stride": (1, 1), "low": (2, 2), "high": (2, 2), "rhs_dilation": (2, 1)},
    {"stride": (1, 2), "low": (-1, 0), "high": (1, -1)},
    {"stride": (1, 1), "low": (1, 1), "high": (2, 1), "lhs_dilation": (2, 3)},
    {"stride": (1, 1), "low": (4, 0), "high": (0, 4), "lhs_dilation": (2, 1)},
    {"stride": (2, 1), "low": (1, 1), "high": (1, 1), "lhs_dilation": (3, 1)},
]
LAST = {"plain": {}, "transposed": {"transposed": True}, "last": {"channels_last": True}}
LAST["both"] = LAST["transposed"] | LAST["last"]
LAST["over images"] = {"over_images": True}
LAST["all"] = LAST["both"] | LAST["over images"]


def stored(axes: list[int], at: Mapping[str, object]) -> list[int]:
    """The sizes of a plain operand in the order of a node."""
    first, second, *rest = axes
    if at.get("over_images"):
        first, second = second, first
    return [first, *rest, second] if at.get("channels_last") else [first, second, *rest]


def reference(node: Node, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Each product added to its place, in f64."""
    at = node.attrs
    order = np.argsort(stored(list(range(x.ndim)), at))
    x, w = x.transpose(order), w.transpose(order)
    sizes = [int(s) for s in node.shape]  # pyright: ignore[reportArgumentType]
    shape = [sizes[i] for i in order]
    groups, out = at["groups"], np.zeros(shape)
    ins, outs = x.shape[1] // groups, shape[1] // groups
    for place in itertools.product(*map(range, shape[2:])):
        for tap in itertools.product(*map(range, w.shape[2:])):
            at_x = [
                p * s + t * d - lo
                for p, s, t, d, lo in zip(
                    place, at["stride"], tap, at["rhs_dilation"], at["low"], strict=True
                )
            ]
            spread = at["lhs_dilation"]
            if any(v % g or not 0 <= v // g < n for v, g, n in zip(at_x, spread, x.shape[2:])):
                continue
            image = x[(..., *(v // g for v, g in zip(at_x, spread)))]
            turned = tuple(n - 1 - t for n, t in zip(w.shape[2:], tap))
            for g in range(groups):
                part = image[:, g * ins : (g + 1) * ins]
                if at.get("transposed"):
                    weight = w[(slice(g * ins, (g + 1) * ins), slice(None), *turned)]
                else:
                    weight = w[(slice(g * outs, (g + 1) * outs), slice(None), *tap)].T
                out[(slice(None), slice(g * outs, (g + 1) * outs), *place)] += part @ weight
    return out.transpose(stored(list(range(out.ndim)), at))


@pytest.mark.each
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("name", LAST)
def test_forms(name: str, form: int, groups: int, rng: np.random.Generator) -> None:
    """Four channels to six, as the interpreter and as torch compute them."""
    ones = {"lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "groups": groups}
    attrs = {**ones, **FORMS[form], **LAST[name]}
    image, weight = [2, 4, 7, 6], [6, 4 // groups, 3, 2]
    if attrs.get("transposed"):
        weight = [4, 6 // groups, 3, 2]
    image, weight = (stored(v, attrs) for v in (image, weight))
    specs: list[Spec] = [("f32", *image), ("f32", *weight)]

    def build(b: Builder, x: Node, w: Node) -> Node:
        return b.conv(x, w, **attrs)

    func = func_of(build, specs)
    arrays = [random_array(s, rng) for s in specs]
    wanted = reference(func.results[0], *arrays)
    np.testing.assert_allclose(func.interpret(*arrays), wanted, rtol=1e-5, atol=1e-5)
    check(func, arrays)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_gradient_of_a_weight(last: bool, stride: int, rng: np.random.Generator) -> None:
    """Images of four channels and gradients of six, compared with torch."""
    attrs = {"low": (1, 1), "high": (1, 1), "lhs_dilation": (1, 1), "stride": (1, 1)}
    attrs |= {"rhs_dilation": (stride,) * 2, "channels_last": last, "over_images": True}
    image, grads = (
        stored([4, 3, 13, 11], attrs),
        stored([6, 3, *((13, 11) if stride == 1 else (7, 6))], attrs),
    )
    specs: list[Spec] = [("f32", *image), ("f32", *grads)]

    def build(b: Builder, x: Node, w: Node) -> Node:
        return b.conv(x, w, groups=1, **attrs)

    func = func_of(build, specs)
    arrays = [random_array(s, rng) for s in specs]
    assert list(func.results[0].shape) == stored([4, 6, 3, 3], attrs)
    np.testing.assert_allclose(
        func.interpret(*arrays), reference(func.results[0], *arrays), rtol=1e-4, atol=1e-4
    )
    check(func, arrays, 1e-4)


def test_the_gradient_of_a_window_as_large_as_its_image(rng: np.random.Generator) -> None:
    """Single channels: one call for all of them, not a product of images for each."""
    attrs = {k: (1, 1) for k in ("stride", "lhs_dilation", "rhs_dilation")}
    specs: list[Spec] = [("f32", 1, 6 * 4, 5, 5), ("f32", 6, 4, 5, 5)]

    def build(b: Builder, x: Node, w: Node) -> Node:
        return b.conv(x, w, groups=6, low=(2, 2), high=(2, 2), **attrs)

    func = func_of(build, specs)
    arrays = [random_array(s, rng) for s in specs]
    with Calls() as calls:
        check(func, arrays, 1e-4)
    assert torch.ops.aten.convolution_backward.default in calls.seen


class Calls(TorchDispatchMode):
    """Records the ops that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[object] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("rank", [1, 3])
def test_ranks(rank: int, last: bool, rng: np.random.Generator) -> None:
    attrs = {k: (1,) * rank for k in ("low", "high", "lhs_dilation", "rhs_dilation")}
    image, weight = [2, 4, *(5, 6, 4)[:rank]], [6, 4, *(2, 3, 2)[:rank]]
    if last:
        image, weight = (([v[0], *v[2:], v[1]]) for v in (image, weight))
    specs: list[Spec] = [("f32", *image), ("f32", *weight)]

    def build(b: Builder, x: Node, w: Node) -> Node:
        return b.conv(x, w, stride=(2,) * rank, groups=1, **attrs, channels_last=last)

    func = func_of(build, specs)
    arrays = [random_array(s, rng) for s in specs]
    np.testing.assert_allclose(
        func.interpret(*arrays), reference(func.results[0], *arrays), rtol=1e-5, atol=1e-5
    )
    check(func, arrays)


def test_what_the_library_allocates_is_kept_no_longer_than_it_is_read() -> None:
    specs: list[Spec] = [("f32", 1, 4, 8, 8), ("f32", 4, 4, 3, 3)]
    window = {k: (1, 1) for k in ("stride", "low", "high", "lhs_dilation", "rhs_dilation")}

    def build(b: Builder, x: Node, w: Node) -> Node:
        for _ in range(3):
            x = b.exp(b.neg(b.conv(x, w, **window, groups=1)))
        return x

    func = func_of(build, specs)
    stages = (*BACKEND.lowering.stages[:-1], ("tiled", "tile,library,memory{made=[conv]}"))
    held: list[int] = []
    programs: list[BlockProgram] = []
    backend = replace(with_stages(stages), compile=_noting(programs))
    executable = compile_func(func, backend)
    (program,) = programs
    inner = [v for v in program.passing if v.source == "made"]
    assert len(inner) == 3
    assert program.arena_bytes == 4 * 4 * 8 * 8  # of one exp: another is not alive beside it
    launches = list(program.launches)

    def counting(launch: object) -> object:
        def run(stream: int) -> None:
            held.append(sum(v.array is not None for v in inner))
            launch(stream)  # pyright: ignore

        return run

    program.launches = [counting(launch) for launch in launches]  # pyright: ignore
    rng = np.random.default_rng(0)
    arrays = [random_array(s, rng) * 0.1 for s in specs]
    (found,) = executable.run(arrays)
    np.testing.assert_allclose(found, func.interpret(*arrays), rtol=1e-4)
    assert held == [0, 1] * 3


def _noting(programs: list[BlockProgram]) -> object:
    def compile_program(func: object, options: dict[str, object]) -> object:
        from stack.backends.device.executable import executable

        program = BlockProgram(func.body, TorchDevice("cpu"), device_load)  # pyright: ignore
        programs.append(program)
        return executable(func, program, [], {}, graph=False)  # pyright: ignore

    from device_backend import load as device_load

    return compile_program
