"""Launches of two captures of a kernel: what is an address, what is constant, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stack.backends.calls.recorded_launches import (
    MAP_BYTES,
    Fill,
    Launch,
    MapOf,
    Recording,
    Spot,
    relocated,
)  # fmt: skip

SIZES = (64, 32, 128)  # an operand, a result, scratch memory
FIRST, SECOND = (1000, 2000, 3000), (5000, 6000, 7000)


def word(value: int) -> bytes:
    return value.to_bytes(8, "little")


def launch(*parameters: bytes, **changes: Any) -> Launch:
    return replace(Launch(77, (2, 3, 4), (32, 1, 1), 16, parameters), **changes)


def recording(starts: tuple[int, ...], *steps: Any) -> Recording:
    return Recording(steps, [*zip(starts, SIZES, strict=True)], [1])


def steps_at(starts: tuple[int, ...], size: int = 9) -> list[Any]:
    x, y, more = starts
    fill = Fill(more + 8, 0, 4, 30)
    return [fill, launch(word(x + 16), word(y), size.to_bytes(4, "little")), launch(word(more))]


def moved(template: bytes, address: int) -> bytes:
    return word(address) + template[8:]


def test_addresses_are_found_and_constants_stay() -> None:
    pair = (recording(starts, *steps_at(starts)) for starts in (FIRST, SECOND))
    made = relocated(*pair, moved)
    assert made is not None
    fill, first, last = made.steps
    assert fill == Fill(Spot(2, 8), 0, 4, 30)
    assert first == launch(Spot(0, 16), Spot(1, 0), (9).to_bytes(4, "little"))  # type: ignore
    assert last == launch(Spot(2, 0))  # type: ignore
    assert made.sizes == SIZES
    assert made.results == (1,)


def test_a_map_of_memory_is_found() -> None:
    tail = bytes(range(MAP_BYTES - 8))
    one, two = (recording(s, launch(word(s[1]) + tail)) for s in (FIRST, SECOND))
    made = relocated(one, two, moved)
    assert made is not None
    assert made.steps == (launch(MapOf(word(FIRST[1]) + tail, Spot(1, 0))),)  # type: ignore
    other = recording(SECOND, launch(word(SECOND[1]) + tail[::-1]))
    assert relocated(one, other, moved) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda s: [*s, s[-1]],
        lambda s: [s[0], replace(s[1], grid=(2, 3, 5)), s[2]],
        lambda s: [s[0], replace(s[1], function=78), s[2]],
        lambda s: [s[0], replace(s[1], shared=0), s[2]],
        lambda s: [replace(s[0], value=1), *s[1:]],
        lambda s: [replace(s[0], target=SECOND[2]), *s[1:]],  # another element of the array
        lambda s: [s[0], s[1], launch(word(SECOND[0]))],  # another array
        lambda s: [s[0], s[1], launch(word(8000))],  # no array
        lambda s: [s[1], s[0], s[2]],
        lambda s: [s[0], steps_at(SECOND, size=10)[1], s[2]],  # a number that changes
    ],
)
def test_what_differs_in_more_than_addresses_is_refused(change: Any) -> None:
    one, steps = recording(FIRST, *steps_at(FIRST)), steps_at(SECOND)
    assert relocated(one, recording(SECOND, *steps), moved) is not None
    assert relocated(one, recording(SECOND, *change(steps)), moved) is None


def test_other_arrays_are_refused() -> None:
    one, two = (recording(s, *steps_at(s)) for s in (FIRST, SECOND))
    assert relocated(one, replace(two, buffers=[*two.buffers[:2], (7000, 64)]), moved) is None
    assert relocated(one, replace(two, results=[2]), moved) is None


def test_a_result_that_no_launch_gets_is_refused() -> None:
    """Its launch was on a stream that was not captured."""
    pair = (recording(s, launch(word(s[0]))) for s in (FIRST, SECOND))
    assert relocated(*pair, moved) is None
