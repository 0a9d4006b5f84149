"""Windows along an axis, as in spectrograms: values, gradients, and how much text."""

from __future__ import annotations

from typing import Any

import pytest

import stack

torch: Any = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

# a shape, the axis, elements of a window, and from one to the next
CASES = [
    ((2, 50), 1, 7, 3),
    ((2, 50), 1, 8, 4),
    ((40, 6), 0, 5, 7),
    ((3, 30, 4), -2, 10, 1),
    ((17,), 0, 17, 1),
    ((17,), 0, 1, 5),
    ((2, 1600), -1, 512, 128),
]


@pytest.mark.every(2)
@pytest.mark.parametrize("shape, axis, size, step", CASES)
def test_windows_and_their_gradient(shape: Any, axis: int, size: int, step: int) -> None:
    torch.compiler.reset()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    factor = torch.linspace(-1, 1, size)

    def f(x: Any) -> Any:
        return x.unfold(axis, size, step) * factor

    def both(call: Any, x: Any) -> tuple[Any, Any]:
        y = call(x)
        (grad,) = torch.autograd.grad((y * y).sum(), x)
        return y.detach(), grad

    exact = both(lambda x: x.unfold(axis, size, step) * factor.double(), x.double())
    for got, want in zip(both(torch.compile(f, backend="stack"), x), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_integers_and_short_floats() -> None:
    for x in (torch.arange(40).reshape(2, 20), torch.randn(2, 20).to(torch.bfloat16)):
        f = lambda x: x.unfold(1, 6, 2).sum(-1)
        assert torch.equal(stack.compile(f, x)(x), f(x))


def test_text_does_not_grow_with_windows() -> None:
    """512 elements are one op, as 8 are: it took a slice, and code nested as deep, for each."""
    x = torch.randn(2, 4096)
    texts = [
        stack.compile(lambda x, n=n: x.unfold(-1, n, 4) * 2, x).run["loop"].text for n in (8, 512)
    ]
    few, many = (text.count("\n") for text in texts)
    assert many < 2 * few


@pytest.mark.parametrize(
    "size, step, options",
    [
        (256, 64, {"center": True}),
        (400, 160, {"center": True, "pad_mode": "constant", "win_length": 300}),
        (2048, 512, {"center": False, "normalized": True}),
    ],
)
def test_spectra(size: int, step: int, options: dict[str, Any]) -> None:
    window = torch.hann_window(options.get("win_length", size))

    def f(x: Any, window: Any) -> Any:
        found = torch.stft(x, size, step, window=window, return_complex=True, **options)
        return torch.view_as_real(found)

    x = torch.randn(2, 6000, generator=torch.Generator().manual_seed(0))
    got, own = stack.compile(f, x, window)(x, window), f(x, window)
    want = f(x.double(), window.double())
    assert (got - want).abs().max() <= max(2 * (own - want).abs().max(), 1e-5)


def test_a_join_of_many_and_many_borders() -> None:
    """Nested hundreds deep and a hundred deep: neither is left to the recursion of Python."""
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))

    def join(x: Any) -> Any:
        return torch.cat([x[:, i % 32 : i % 32 + 1] for i in range(450)], 1) * 2

    def borders(x: Any) -> Any:
        for i in range(100):
            x = torch.nn.functional.pad(x, (i % 2, (i + 1) % 2))
        return x * 2

    for f in (join, borders):
        assert torch.equal(stack.compile(f, x)(x), f(x))
