"""Files of text with large constants beside them."""

from __future__ import annotations

import contextlib
import gc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from random_funcs import random_func

from stack.errors import ParseError, UsageError
from stack.ir import Builder, Func, param, parse, tensor
from stack.ir.data import lookup
from stack.ir.files import CONSTANTS, load, load_constants, save, save_constants
from stack.ir.types import DTYPES


def func_of(seed: int, dtype: str = "f32") -> Func:
    rng = np.random.default_rng(seed)
    b = Builder()
    x = param("x", tensor(dtype, 40))
    weight = b.const(rng.integers(0, 2, 40).astype(DTYPES[dtype].numpy), dtype)
    inner = b.const(rng.integers(0, 2, (40,)).astype(DTYPES[dtype].numpy)[::-1], dtype)
    block = b.block((x,), (b.eq(x, inner),))
    return b.func("f", [x], [b.eq(x, weight), b.call(x, name="g", blocks=(block,))])


def text_and_digests(func: Func) -> tuple[str, list[str]]:
    text = str(func)
    return text, [w[:32] for w in text.split("], ")[1:] if len(w) > 32 and w[32:33] == ">"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saved_function_loads_in_another_process(dtype: str, tmp_path: Path) -> None:
    path = save(func_of(1, dtype), tmp_path / "f.stack")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.constants.npz", "f.stack"]
    text, digests = text_and_digests(func_of(1, dtype))
    gc.collect()
    assert len(digests) == 2
    assert all(lookup(d) is None for d in digests)  # as in a process that never saw them
    with pytest.raises(ParseError, match="neither in memory nor in the side file"):
        parse(text)
    again = load(path)
    assert str(again) == text
    assert again is func_of(1, dtype)


def test_functions_without_large_constants_need_no_side_file(tmp_path: Path) -> None:
    save(func_of(1), tmp_path / "f.stack")
    b = Builder()
    x = param("x", tensor("f32"))
    func = b.func("f", [x], [b.neg(x)])
    assert load(save(func, tmp_path / "f.stack")) is func
    assert [p.name for p in tmp_path.iterdir()] == ["f.stack"]


def test_a_folder_shares_its_constants(tmp_path: Path) -> None:
    funcs = [func_of(seed) for seed in range(3)]
    assert save_constants(funcs, tmp_path) == tmp_path / CONSTANTS
    for k, func in enumerate(funcs):
        (tmp_path / f"{k}.stack").write_text(str(func))
    texts = [str(f) for f in funcs]
    del funcs, func
    gc.collect()
    assert [str(load(tmp_path / f"{k}.stack")) for k in range(3)] == texts
    assert save_constants([random_func(1)], tmp_path) is None
    assert load_constants(tmp_path) == {}


def test_damage_is_reported(tmp_path: Path) -> None:
    path = save(func_of(2), tmp_path / "f.stack")
    side = tmp_path / "f.constants.npz"
    good = side.read_bytes()
    gc.collect()
    for bad in (b"", b"junk", good[: len(good) // 2], good[:-30], good.replace(b"NUMPY", b"NUMPX")):
        side.write_bytes(bad)
        with pytest.raises(UsageError, match=r"f\.constants\.npz is damaged"):
            load(path)
    # a changed number: the digest does not fit
    with np.load(side_of(good, tmp_path)) as held:
        arrays = {k: held[k].copy() for k in held.files}
    for array in arrays.values():
        array[0] += 1
    np.savez(side, **arrays)
    with pytest.raises(ParseError, match="with digest") as caught:
        load(path)
    assert "f.stack" in caught.value.__notes__[0]
    # objects are not unpickled
    np.savez(side, **{k: np.array([object()]) for k in arrays})
    with pytest.raises(UsageError, match="damaged"):
        load(path)
    np.savez(side, **{k: np.array(["text"]) for k in arrays})
    with pytest.raises(ParseError, match="side file has other data"):
        load(path)
    for cut in range(0, len(good), max(37, len(good) // 100)):
        changed = bytearray(good)
        changed[cut] ^= 0x55
        side.write_bytes(bytes(changed))
        with contextlib.suppress(UsageError, ParseError):
            load(path)
        gc.collect()


def side_of(content: bytes, folder: Path) -> Path:
    other = folder / "other.npz"
    other.write_bytes(content)
    return other


def test_files_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file or saved run"):
        load(tmp_path / "none.stack")
    (tmp_path / "b.stack").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "b.stack")
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path)


def test_the_side_file_is_a_plain_archive(tmp_path: Path) -> None:
    save(func_of(3), tmp_path / "f.stack")
    with zipfile.ZipFile(tmp_path / "f.constants.npz") as archive:
        assert all(len(n) == 32 + len(".npy") for n in archive.namelist())
    first = (tmp_path / "f.constants.npz").read_bytes()
    save(func_of(3), tmp_path / "f.stack")
    assert (tmp_path / "f.constants.npz").read_bytes() == first
