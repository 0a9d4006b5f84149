"""Convolutions on a CPU against torch's in f64: generated with what follows, or counted as a
library's."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

import stack
from stack.passes import layout
from stack.target import cpu_at_hand, load
from stack.target.host import missing_here

torch: Any = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")
nn = torch.nn

# a module, the shape of its image, whether kernels are generated for it
CASES: dict[str, tuple[Any, tuple[int, ...], bool]] = {
    "3x3": (nn.Conv2d(32, 70, 3, 1, 1), (1, 32, 14, 14), True),
    "stem": (nn.Conv2d(3, 16, 7, 2, 3), (2, 3, 33, 31), True),
    "1x1 with a stride": (nn.Conv2d(20, 33, 1, 2, bias=False), (1, 20, 15, 15), True),
    "dilated": (nn.Conv2d(5, 7, (3, 5), (2, 1), (0, 2), (2, 3)), (2, 5, 17, 19), True),
    "one result": (nn.Conv2d(8, 1, 3), (1, 8, 9, 9), True),
    "a panel in blocks": (nn.Conv2d(512, 64, 3, 1, 1), (1, 512, 5, 5), True),
    "taps in blocks": (nn.Conv1d(1, 64, 2500), (1, 1, 3200), True),
    "line": (nn.Conv1d(8, 20, 5, 2, 1), (3, 8, 40), True),
    "volume": (nn.Conv3d(4, 20, 3, 1, (1, 0, 2)), (1, 4, 6, 7, 8), True),
    "single channels": (nn.Conv2d(72, 72, 3, 2, 1, groups=72), (1, 72, 14, 15), True),
    "single channels, 7x7": (nn.Conv2d(24, 24, 7, 1, 3, groups=24), (2, 24, 11, 13), True),
    "single channels of a line": (nn.Conv1d(5, 5, 4, groups=5), (2, 5, 9), True),
    "windows larger than results": (nn.Conv2d(8, 40, 5), (3, 8, 5, 5), False),
    "groups": (nn.Conv2d(10, 48, 3, 1, 1, groups=2), (1, 10, 9, 9), True),
    "groups of a line": (nn.Conv1d(96, 96, 64, 1, 32, groups=4), (2, 96, 37), True),
    "groups of a volume": (nn.Conv3d(8, 32, 2, 1, 1, groups=2), (1, 8, 3, 4, 5), True),
    "narrow groups": (nn.Conv2d(8, 12, 3, 1, 1, groups=2), (1, 8, 9, 9), False),
    "phases": (nn.ConvTranspose2d(8, 32, 4, 2, 1), (2, 8, 9, 7), True),
    "transposed, of windows apart": (nn.ConvTranspose2d(5, 17, 2, 2), (1, 5, 1, 11), False),
    "phases of a part of the image": (nn.ConvTranspose1d(3, 16, 5, 3, 4), (2, 3, 13), True),
    "phases with zeros": (nn.ConvTranspose2d(6, 40, (3, 1), (2, 1), 1, (1, 0)), (1, 6, 5, 6), True),
    "phases in groups": (nn.ConvTranspose2d(6, 32, 3, 2, 0, 1, groups=2), (1, 6, 7, 5), True),
    "phases of a volume": (nn.ConvTranspose3d(4, 16, 4, 2, 1), (1, 4, 2, 3, 5), True),
    "transposed, of few results": (nn.ConvTranspose2d(8, 12, 3, 2, 1), (1, 8, 9, 9), False),
    "transposed, of few taps": (nn.ConvTranspose2d(8, 16, 1, 2), (1, 8, 9, 9), False),
    "transposed, with gaps": (nn.ConvTranspose2d(8, 16, 3, 2, dilation=2), (1, 8, 9, 9), False),
}


def check(module: Any, shape: tuple[int, ...]) -> Any:
    """The compiled module, whose values on a random image are those in f64."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        compiled = stack.compile(module, x, backend="mlir")
        got = compiled(x)
        expected = module.double()(x.double())
        module.float()
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
    return compiled


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        layout, "_windows_pay", lambda *_: True
    )  # whatever the copies around it cost
    module, shape, is_generated = CASES[name]
    compiled = check(nn.Sequential(module, nn.ReLU()), shape)
    kinds = {k.kind for k in compiled.run.kernels}
    assert kinds == ({"generated"} if is_generated else {"generated", "library"})
    assert compiled.run.coverage["library"] == (not is_generated)


# instructions on vectors, where this CPU has them: those of AMX leave some of these to a library
VECTORS = cpu_at_hand().name if missing_here(load("avx512").features) else "avx512"
SHORT = [
    "3x3", "stem", "dilated", "line", "volume", "single channels", "groups", "a panel in blocks",
]  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SHORT)
def test_short_numbers(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Summed in f32 and rounded once, by this CPU's instructions or wider numbers."""
    monkeypatch.setattr(layout, "_windows_pay", lambda *_: True)
    part, shape, _ = CASES[name]
    module = nn.Sequential(copy.deepcopy(part), nn.ReLU()).to(dtype)
    module[0].bias = None
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        compiled = stack.compile(module, x, backend="mlir", target=VECTORS)
        got = compiled(x)
        expected = module.double()(x.double())
    assert {k.kind for k in compiled.run.kernels} == {"generated"}
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), expected, rtol=step, atol=step / 64)


def test_a_long_sum_over_two_axes_is_made_of_blocks() -> None:
    """No axis is long by itself: 48 channels by 128 taps."""
    x, w = torch.rand(1, 400, 48), torch.rand(32, 48, 128)
    with torch.no_grad():
        compiled = stack.compile(
            lambda x, w: torch.relu(torch.conv1d(x.mT, w)).mT.contiguous(), x, w, backend="mlir"
        )
        expected = torch.conv1d(x.mT.double(), w.double()).mT
        off = ((compiled(x, w) - expected) / expected).abs().max()
    assert compiled.run.coverage["library"] == 0
    assert off < 6 * torch.finfo(torch.float32).eps  # one chain of additions is 19 off


def test_numbers_that_are_none_stay_in_their_group_and_window() -> None:
    """Channels of zeros that make up pairs meet zeros alone."""
    module = nn.Conv2d(6, 64, 3, groups=2, bias=False).to(torch.bfloat16)
    x = torch.ones(1, 6, 7, 40, dtype=torch.bfloat16)
    x[0, 2, 0, 0], x[0, 5, 6, 39] = torch.inf, torch.nan
    net = nn.Sequential(module, nn.ReLU()).to(memory_format=torch.channels_last)
    with torch.no_grad():
        got = stack.compile(net, x.contiguous(memory_format=torch.channels_last), backend="mlir")(x)
        expected = net.float()(x.float())
    assert (got.isfinite() == expected.isfinite()).all()
    assert (got.isnan() == expected.isnan()).all()


LONE: dict[str, tuple[Any, tuple[int, ...]]] = {
    "padded, with a bias": (nn.Conv2d(16, 32, 3, padding=1), (2, 16, 20, 20)),
    "as it is": (nn.Conv2d(8, 32, 3, bias=False), (1, 8, 9, 17)),
    "of a row of few places": (nn.Conv2d(16, 64, 3, padding=1), (1, 16, 7, 7)),
    "line": (nn.Conv1d(8, 48, 3, 1, 1), (2, 8, 30)),
    "volume": (nn.Conv3d(8, 16, 3, 1, 1), (1, 8, 4, 9, 11)),
    "single channels": (nn.Conv2d(48, 48, 7, 1, 3, groups=48), (1, 48, 12, 19)),
    "in groups": (nn.Conv2d(12, 96, 3, 1, 1, groups=2), (1, 12, 9, 20)),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", LONE)
def test_a_lone_convolution_is_generated(name: str) -> None:
    """With channels second, a library also has to transpose image and result."""
    compiled = check(*LONE[name])
    assert {k.kind for k in compiled.run.kernels} == {"generated"}


RULE = re.compile(r'dot\(.*rule="[^"]*-> ([^"]*)"')


@pytest.mark.parametrize("outs, groups, side", [(3, 1, 20), (12, 3, 17)])
def test_few_results_are_computed_along_places(outs: int, groups: int, side: int) -> None:
    """Lanes of channels would idle; those of places, too, where a row has fewer than a vector."""
    compiled = check(nn.Conv2d(6, outs, 3, padding=1, groups=groups), (2, 6, side, side))
    assert {k.kind for k in compiled.run.kernels} == {"generated"}
    (result,) = RULE.findall(compiled.run["fused"].text)
    assert result.endswith("o s0 s1")
    small = check(nn.Conv2d(6, outs, 3, padding=1, groups=groups), (1, 6, 15, 3))
    assert next(k.name for k in small.run.kernels) == "torch.convolution.conv"
    row = nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(5)])
    assert {k.kind for k in check(row, (1, 3, 20, 20)).run.kernels} == {"generated"}


TILES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "few results": (nn.Conv2d(64, 3, 3, 1, 1), (1, 64, 17, 17)),
    "narrow groups": (nn.Conv2d(96, 48, 3, 2, 1, groups=4), (2, 96, 19, 37)),
    "phases": (nn.ConvTranspose2d(24, 12, 4, 2, 1), (1, 24, 18, 19)),
}


@pytest.mark.parametrize("name", TILES)
@pytest.mark.skipif(cpu_at_hand().name != "amx", reason="this CPU has no tiles")
def test_zeros_make_up_tiles(name: str) -> None:
    """Channels and results are padded, and cut again; nans stay where they are."""
    part, shape = TILES[name]
    module = copy.deepcopy(part).to(torch.bfloat16)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with torch.no_grad():
        compiled = stack.compile(module, x, backend="mlir")
        got = compiled(x).double()
        wild = x.clone()
        wild[0, 5, 3, 4] = torch.inf
        got_wild = compiled(wild)
        expected = module.double()(x.double())
        expected_wild = module(wild.double())
    assert {k.kind for k in compiled.run.kernels} == {"generated"}
    assert "tdpbf16ps" in compiled.run["asm"].text
    step = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(got, expected, rtol=2 * step, atol=2 * step)
    assert (got_wild.isfinite() == expected_wild.isfinite()).all()


@pytest.mark.each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_taps_of_single_channels_are_summed(stride: int, dtype: Any) -> None:
    """In one kernel, whose rows are read under masks and by steps; nothing is copied around it."""
    part = nn.Conv2d(10, 10, 3, stride, 1, groups=10, bias=False).to(dtype)
    x = torch.randn(2, 10, 21, 37, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        compiled = stack.compile(part, x, backend="mlir")
        got, expected = compiled(x), part.double()(x.double())
    assert [k.kind for k in compiled.run.kernels] == ["generated"]
    slack = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), expected, rtol=slack, atol=slack)


def test_places_by_a_stride_are_taken_first() -> None:
    """Strided windows are read in place: channels are not moved last, and are one axis."""
    compiled = check(nn.Conv2d(16, 24, 1, 2), (2, 16, 15, 15))
    assert [k.ops[0] for k in compiled.run.kernels] == ["slice", "dot"]
    (result,) = RULE.findall(compiled.run["fused"].text)
    assert len(result.split()) == 3


def test_a_network_has_no_copies_between_its_layers() -> None:
    """Norm, activation and the sum around follow in the kernels of products; channels are last
    from the first product to the head."""

    def unit(inner: int, outer: int, size: int, stride: int, groups: int = 1) -> list[Any]:
        conv = nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(outer), nn.ReLU()]

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = [*unit(16, 48, 1, 1), *unit(48, 48, 3, 1, 48), *unit(48, 16, 1, 1)]
            self.body = nn.Sequential(*parts)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.body(x))

    net = nn.Sequential(*unit(3, 16, 3, 2), Around(), *unit(16, 24, 3, 2)).eval()
    compiled = check(net, (1, 3, 24, 24))
    kernels = compiled.run.kernels
    assert {k.kind for k in kernels} == {"generated"}
    moved = [k.name for k in kernels if "transpose" in k.ops]
    assert len(moved) == 1, moved  # of the result; planes of the image are read in place
    rules = RULE.findall(compiled.run["fused"].text)
    assert len(rules) == 5 and all(rule.endswith(" o") for rule in rules)
    assert sum("dot" in k.ops and "max" in k.ops for k in kernels) >= 2
