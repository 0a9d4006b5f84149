"""Target files: they read back, and what is missing or absurd in one is refused by its key."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from stack.errors import UsageError
from stack.target import Cpu, Gpu, as_cpu, as_gpu, load, names
from stack.target.files import FOLDER, groups_of, numbers_of, parse, read, save, text_of

ALL = ["amx", "avx2", "avx512", "generic", "neon", "sm_100", "sm_80", "sm_90"]


def test_the_targets_that_there_are() -> None:
    assert names() == ALL


@pytest.mark.parametrize("name", ALL)
def test_a_target_reads_back_and_every_number_has_a_source(name: str, tmp_path: Path) -> None:
    target = load(name)
    assert target.name == name
    assert all(target.sources[key] for key in numbers_of(type(target)))
    save(target, tmp_path / "t.toml")
    again = read(tmp_path / "t.toml")
    assert (again, dict(again.sources)) == (target, dict(target.sources))


@pytest.mark.parametrize("name", ["avx512", "sm_90"])
def test_a_missing_number_is_named_with_its_meaning(name: str) -> None:
    target = load(name)
    for key, spec in numbers_of(type(target)).items():
        table = tomllib.loads(text_of(target))
        del table["numbers"][key]
        with pytest.raises(UsageError) as error:
            parse(table, "t.toml:")
        assert f"number '{key}' is missing" in str(error.value)
        assert spec.metadata["doc"] in str(error.value)


@pytest.mark.parametrize("name", ["avx512", "sm_90"])
def test_absurd_numbers_are_refused(name: str) -> None:
    target = load(name)
    for key, spec in numbers_of(type(target)).items():
        nothing = [0, -getattr(target, key), True, "fast", [1]]
        absurd = [1 << 60] if spec.type == "int" else [1e300, float("nan"), float("inf")]
        for value in [*nothing, *absurd, *([2.5] if spec.type == "int" else [])]:
            table = tomllib.loads(text_of(target))
            table["numbers"][key] = {"value": value, "source": "test"}
            with pytest.raises(UsageError, match=rf"t\.toml: {key} "):
                parse(table, "t.toml:")


MISTAKES = [
    ("processors =", "procesors =", "number called 'procesors'; did you mean 'processors'"),
    ("[numbers]", "[number]", "no key is called 'number'; did you mean 'numbers'"),
    ('kind = "gpu"', 'kind = "tpu"', "kind is one of gpu, cpu, not 'tpu'"),
    ('arch = "sm_90"', "", "'arch' is missing"),
    ("launch = { value", "launch = { vlaue", "number 'launch' has no 'vlaue'"),
    ("features = [", "features = [[", r"t\.toml: Unclosed array \(at line"),
    ("[tiles.tf32]", "[tiles.tf23]", "no product of tiles is called 'tf23'; did you mean 'tf32'"),
    ('stages=6" = 0.91', 'stages=6" = 91', r"tiles.half 'm=128 .*' = 91 is not between 0 and 2"),
    ('"m=64 n=256 k=32', '"m=64 n=256', "tiles.tf32 'm=64 n=256 .*' is not as 'm=128"),
]


def test_tiles_of_a_product_are_not_left_out() -> None:
    table = tomllib.loads(text_of(load("sm_90")))
    del table["tiles"]["reading"]
    with pytest.raises(UsageError, match=r"tiles\.reading is missing \(of products of 16-bit"):
        parse(table, "t.toml:")
    table = tomllib.loads(text_of(load("avx512"))) | {"tiles": {}}
    with pytest.raises(UsageError, match="tiles are of a gpu"):
        parse(table, "t.toml:")


@pytest.mark.parametrize(("right", "wrong", "message"), MISTAKES)
def test_a_file_with_a_mistake_is_refused(
    right: str, wrong: str, message: str, tmp_path: Path
) -> None:
    text = (FOLDER / "sm_90.toml").read_text()
    assert right in text
    path = tmp_path / "t.toml"
    path.write_text(text.replace(right, wrong))
    with pytest.raises(UsageError, match=message):
        load(str(path))


def test_a_number_may_stand_without_its_source(tmp_path: Path) -> None:
    text = (FOLDER / "avx2.toml").read_text()
    line = next(row for row in text.splitlines() if row.startswith("cores"))
    (tmp_path / "t.toml").write_text(text.replace(line, "cores = 8"))
    found = load(str(tmp_path / "t.toml"))
    assert isinstance(found, Cpu)
    assert found.cores == 8


@pytest.mark.parametrize(("name", "near"), {"avx51": "avx512", "sm_9": "sm_90"}.items())
def test_a_name_that_is_none_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{near}'"):
        load(name)


BEFORE = {"sm_75": "sm_80", "sm_86": "sm_80", "sm_90a": "sm_90", "sm_120": "sm_100"}


@pytest.mark.parametrize(("name", "base"), BEFORE.items())
def test_a_gpu_without_a_file_takes_the_numbers_of_the_one_before(name: str, base: str) -> None:
    found = load(name)
    assert found == replace(load(base), name=name, arch=name, title=found.title)
    assert f"the numbers of {base}, since it has no file of its own" in found.title


def test_kinds_are_kept_apart() -> None:
    assert isinstance(as_gpu(None), Gpu)
    assert isinstance(as_cpu(None), Cpu)
    with pytest.raises(UsageError, match="'avx2' is a CPU, and this is for GPUs: sm_100"):
        as_gpu(load("avx2"))
    with pytest.raises(UsageError, match="'sm_80' is a GPU, and this is for CPUs: amx, avx2"):
        as_cpu(load("sm_80"))


TUNED = '\n[tuning.rows]\ntile = { value = 2048, source = "measured here" }\nwarps = 8\n'


def test_a_file_overrides_tuned_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text((FOLDER / "sm_90.toml").read_text() + TUNED)
    found, usual = as_gpu(load(str(path))), as_gpu(load("sm_90"))
    assert found.rows == replace(usual.rows, tile=2048, warps=8)
    assert replace(found, rows=usual.rows) == usual
    assert found.sources["rows.tile"] == "measured here"
    assert "[tuning" not in text_of(usual)
    save(found, path)
    again = load(str(path))
    assert (again, dict(again.sources)) == (found, dict(found.sources))


@pytest.mark.parametrize("name", ["avx512", "sm_90"])
def test_tuned_numbers_have_sources_and_lie_in_their_range(name: str) -> None:
    for group in groups_of(type(load(name))).values():
        for spec in numbers_of(type(group)).values():
            about = spec.metadata
            assert about["low"] <= spec.default <= about["high"]
            assert about["doc"] and about["source"]


TUNING_MISTAKES = [
    ("[tuning.row]", "a gpu has no group of tuned numbers called 'row'; did you mean 'rows'"),
    ("[tuning.rows]\ntiles = 4", "tuning.rows has no number called 'tiles'; did you mean 'tile'"),
    ("[tuning.rows]\ntile = 0", r"tuning.rows.tile = 0 is not between 1 and 65536 elements"),
    ("[tuning.rows]\ntile = 0.5", "tuning.rows.tile is a whole number"),
    ("[tuning]\nrows = 4", "tuning.rows is a table, not 4"),
]


@pytest.mark.parametrize(("text", "message"), TUNING_MISTAKES)
def test_a_wrong_tuned_number_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text((FOLDER / "sm_90.toml").read_text() + f"\n{text}\n")
    with pytest.raises(UsageError, match=message):
        load(str(path))
