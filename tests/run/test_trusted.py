"""Foreign files in a cache or a run folder: no waiting, no end, no way out, no foreign code."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stack.cli import main
from stack.errors import StackError, UsageError
from stack.explore.saved_run import SavedRun, load_run
from stack.ir import Builder, Func, files, param, tensor
from stack.ir.untrusted_files import inside, open_file, read_bytes
from stack.run import cache as caches
from stack.run.backend import Kernel
from stack.run.cache import Cache
from stack.run.record import Run, Stage

KEY = "ab" * 32
posix = pytest.mark.skipif(os.name != "posix", reason="owners and FIFOs are of POSIX")


def function(constant: bool = False) -> Func:
    b, x = Builder(), param("x", tensor("f32", 100))
    held = b.const(np.arange(100, dtype=np.float32)) if constant else b.exp(x)
    return b.func("main", [x], [b.add(x, held)])


def saved(folder: Path, constant: bool = False) -> Path:
    kernel = Kernel("k", "generated", "the code", "py")
    return Run("t", "f", "b", [Stage("imported", function(constant))], [kernel]).save(folder)


def change(folder: Path, edit: Any) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))


# ---- the cache


@posix
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_may_write_is_a_miss(tmp_path: Path, mode: int) -> None:
    store = Cache(tmp_path)
    store.put(KEY, b"code")
    assert store.get(KEY) == b"code"
    os.chmod(store.path(KEY), mode)
    assert store.get(KEY) is None
    store.put(KEY, b"code")
    assert store.get(KEY) == b"code"


@posix
def test_an_entry_of_another_user_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Cache(tmp_path)
    store.put(KEY, b"code")
    owner = store.path(KEY).stat().st_uid
    if owner == 0:
        os.chown(store.path(KEY), 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert store.get(KEY) is None


@posix
def test_what_is_no_file_is_a_miss(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.put(KEY, b"code")
    path = store.path(KEY)
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)
    assert store.get(KEY) is None
    path.unlink()
    os.mkfifo(path)  # nobody writes into it
    assert store.get(KEY) is None
    path.unlink()
    path.symlink_to("/dev/zero")
    assert store.get(KEY) is None


def test_an_entry_without_end_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Cache(tmp_path)
    store.put(KEY, b"code")
    with store.path(KEY).open("ab") as file:
        file.truncate(1 << 40)  # sparse
    assert store.get(KEY) is None
    monkeypatch.setattr(caches, "MOST_BYTES", 10)
    store.put(KEY, b"code")
    assert store.get(KEY) is None


# ---- files


@posix
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/tty", tmp_path):
        with pytest.raises(OSError):
            open_file(path)


def test_reading_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="at most 4"):
        read_bytes(tmp_path / "a", 4)


@pytest.mark.parametrize(
    "name",
    [
        *("../a", "/etc/passwd", "x/../../a", "", ".", "link", "loop", "a\0b"),
        *("kernels/../../a", None, 3, ["a"]),
    ],
)
def test_names_stay_inside(tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "a").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "a")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "b").write_text("b")
    assert inside(folder, "b").read_text() == "b"
    with pytest.raises((OSError, RuntimeError)):
        read_bytes(inside(folder, name), 100)


# ---- runs


@pytest.mark.parametrize("name", ["../secret", "/secret", "sub/../../secret", "link"])
def test_a_manifest_names_nothing_outside(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "run")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    name = str(tmp_path / "secret") if name == "/secret" else name

    def edit(manifest: Any) -> None:
        manifest["stages"][0]["file"] = manifest["kernels"][0]["file"] = name

    change(folder, edit)
    run = load_run(folder)
    with pytest.raises(UsageError, match="not inside"):
        run.text("imported")
    with pytest.raises(UsageError, match="not inside"):
        run.kernel_text("k")


@pytest.mark.parametrize("file", ["manifest.json", "00-imported.stack", "constants.npz"])
@pytest.mark.parametrize("kind", ["fifo", "device", "outside", "large"])
@posix
def test_odd_files_of_a_run_are_refused(tmp_path: Path, file: str, kind: str) -> None:
    folder = saved(tmp_path / "run", constant=True)
    path = folder / file
    held = path.read_bytes()
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "outside":
        (tmp_path / "other").write_bytes(held)
        path.symlink_to(tmp_path / "other")
    else:
        path.write_bytes(held)
        with path.open("ab") as opened:
            opened.truncate(1 << 40)
    with pytest.raises(StackError):
        load_run(folder).func("imported")


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.pop("stages"),
        lambda m: m.update(stages=3),
        lambda m: m.update(stages=["a"]),
        lambda m: m["stages"][0].pop("file"),
        lambda m: m["stages"][0].update(name=7),
        lambda m: m.update(kernels={"a": 1}),
    ],
)
def test_a_manifest_of_another_form_is_damaged(tmp_path: Path, edit: Any) -> None:
    folder = saved(tmp_path / "run")
    change(folder, edit)
    with pytest.raises(UsageError, match="damaged"):
        load_run(folder)


def test_a_manifest_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    (folder / "manifest.json").write_text("[" * 200_000)
    with pytest.raises(UsageError, match="cannot be read"):
        load_run(folder)


def test_an_archive_that_grows_is_refused(tmp_path: Path) -> None:
    zeros = io.BytesIO()
    np.save(zeros, np.zeros(1 << 22))
    with zipfile.ZipFile(tmp_path / files.CONSTANTS, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", zeros.getvalue())
    with pytest.raises(UsageError, match="would expand"):
        files.load_constants(tmp_path)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / files.CONSTANTS, a=np.array([print], dtype=object))
    with pytest.raises(UsageError, match="damaged"):
        files.load_constants(tmp_path)


@pytest.mark.parametrize("name", ["../../out", "/out", "a/b", ".."])
def test_a_kernel_is_written_inside_of_its_run(tmp_path: Path, name: str) -> None:
    kernel = Kernel(name, "generated", "the code", "py")
    folder = Run("t", "f", "b", [Stage("imported", function())], [kernel]).save(
        tmp_path / "a/b/run"
    )
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert all(p.is_relative_to(folder) for p in written)
    assert load_run(folder).kernel_text(name) == "the code"


@posix
def test_a_run_is_written_over_what_is_in_the_way(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    for path in (folder / "manifest.json", folder / "kernels" / "k.py"):
        path.unlink()
    os.mkfifo(folder / "manifest.json")
    (tmp_path / "other").write_text("mine")
    (folder / "kernels" / "k.py").symlink_to(tmp_path / "other")
    assert isinstance(load_run(saved(folder)), SavedRun)
    assert (tmp_path / "other").read_text() == "mine"


def test_the_command_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "run")
    change(folder, lambda m: m["stages"][0].update(file="../../etc/passwd"))
    assert main(["show", str(folder), "imported"]) == UsageError.exit_code
    assert "not inside" in capsys.readouterr().err
