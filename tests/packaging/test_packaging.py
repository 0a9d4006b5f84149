"""The folders at the top of the repository install as one import name, whole, and stay light."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from stack.releases import TESTED

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
LINKED = ("backends", "demos", "frontends", "ops", "passes")

# Everything outside the standard library that some part of `stack` may use. Where one of these is
# absent, the modules that need it at import are skipped by name; any other failure is a failure.
OPTIONAL = frozenset(
    (
        *("torch", "depyf", "jax", "jaxlib", "triton", "torch_mlir", "mlir", "tvm", "tvm_ffi"),
        *("cuda", "cupy", "transformers", "matplotlib", "hypothesis", "expecttest", "scipy"),
        *("ml_dtypes", "onnx", "iree", "openvino", "helion", "tilelang", "cutlass"),
    )
)
# What must not be loaded before it is used: by `import stack`, and by the core and the passes.
HEAVY = sorted((OPTIONAL - {"ml_dtypes"}) | {"setuptools", "pip", "pytest"})


def folder_of(package: str) -> Path:
    """The real folder of a package, by the mapping that the wheel is built from."""
    mapping: dict[str, str] = SETUPTOOLS["package-dir"]
    parts = package.split(".")
    for n in range(len(parts), 0, -1):
        if (base := ".".join(parts[:n])) in mapping:
            return ROOT.joinpath(mapping[base], *parts[n:])
    raise AssertionError(f"{package} has no package-dir")


def files_in_tree() -> dict[str, Path]:
    """Path below an installed `stack/` -> path in the repository, for what git holds or would."""
    found: dict[str, Path] = {}
    for path in git_files():
        top, *rest = path.parts
        if path.is_symlink() or not rest:
            continue
        if top == "stack":
            found["/".join(rest)] = path
        elif top in LINKED:
            found["/".join((top, *rest))] = path
    return found


def git_files() -> list[Path]:
    """Tracked and not ignored files, as paths relative to the root."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout", allow_module_level=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = sorted({Path(p) for p in listed.split("\0") if p})
    return [p for p in paths if (ROOT / p).is_symlink() or (ROOT / p).is_file()]


FILES = files_in_tree()
LESSONS = "demos/course/lessons/lesson_"  # scripts: to import one is to run it
MODULES = sorted(
    ".".join(["stack", *Path(p).with_suffix("").parts]).removesuffix(".__init__")
    for p in FILES
    if p.endswith(".py") and not str(p).startswith(LESSONS)
)
# The files for one framework load it. Nothing else in the core loads them at import.
OF_FRAMEWORKS = tuple(
    f"stack.frameworks.{name}"
    for name in (
        *("jax_private", "jax_ranges"),
        *("torch_captures", "torch_private", "torch_ranges"),
    )
)
CORE = [
    m
    for m in MODULES
    if m not in OF_FRAMEWORKS and m.split(".")[1:2] not in [[f] for f in LINKED if f != "passes"]
]


def python(code: str, *args: str, cwd: Path, path: Path | None = None) -> str:
    """Run code in a fresh interpreter; with `path`, that folder comes before all others."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSTARTUP")}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"} | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""


# --- the tree ------------------------------------------------------------------------------------


def test_package_list_is_the_tree() -> None:
    with_code = {str(Path(p).parent) for p in FILES if p.endswith(".py")}
    in_tree = sorted("stack" + "".join(f".{x}" for x in Path(d).parts) for d in with_code)
    assert sorted(SETUPTOOLS["packages"]) == in_tree, "tool.setuptools.packages in pyproject.toml"


def test_every_package_has_an_init() -> None:
    for package in SETUPTOOLS["packages"]:
        assert (folder_of(package) / "__init__.py").is_file(), package


def test_mapping_covers_the_folders() -> None:
    expected = {"stack": "stack"} | {f"stack.{name}": name for name in LINKED}
    assert SETUPTOOLS["package-dir"] == expected


@pytest.mark.parametrize("name", LINKED)
def test_link_is_relative_and_tracked(name: str) -> None:
    link = ROOT / "stack" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == ROOT / name
    staged = subprocess.run(
        ["git", "ls-files", "--stage", f"stack/{name}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert staged.startswith("120000 "), f"stack/{name} is not in git as a link: {staged!r}"


def test_no_other_links() -> None:
    links = [str(p) for p in git_files() if (ROOT / p).is_symlink()]
    assert sorted(links) == sorted(f"stack/{name}" for name in LINKED)


def test_no_machine_paths() -> None:
    """Text in git names no folder of anybody's machine, and constraints.txt no registry."""
    folders = "home|Users|root|work|workspace|opt|private|mnt"
    machine = re.compile(rf"(?<![\w./~<>$}})\]-])/(?:{folders})/[\w.]")
    found: list[str] = []
    for path in git_files():
        if (ROOT / path).is_symlink():
            assert not os.readlink(ROOT / path).startswith("/"), path
            continue
        data = (ROOT / path).read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if machine.search(line):
                found.append(f"{path}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in pins
    assert " @ " not in pins


# --- requirements --------------------------------------------------------------------------------


def test_core_needs_numpy_only() -> None:
    names = [re.split(r"[^\w.-]", r)[0] for r in PROJECT["project"]["dependencies"]]
    assert names == ["numpy"]


def test_constraints_pin_every_direct_requirement() -> None:
    pins = {
        normal(line.split("==")[0]): line.split("==")[1]
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    }
    extras = PROJECT["project"]["optional-dependencies"]
    # triton is not part of what `make` installs: it needs a GPU to be of use
    wanted = [*PROJECT["project"]["dependencies"]]
    wanted += [r for name, reqs in extras.items() if name != "triton" for r in reqs]
    # torch's CUDA wheels ask for the NVRTC of their own toolkit: a pin would refuse one of the two
    pins.setdefault("nvidia-cuda-nvrtc", "")
    missing = [r for r in wanted if normal(re.split(r"[^\w.-]", r)[0]) not in pins]
    assert not missing
    assert pins["torch"] == "2.13.0", "a local version such as +cpu fits one index only"
    assert pins["apache-tvm-ffi"] == "0.1.14.post0"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- what an import costs ------------------------------------------------------------------------

REPORT_HEAVY = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted(set(json.loads(sys.argv[2])) & set(sys.modules))))
"""


def test_import_stack_loads_no_framework(tmp_path: Path) -> None:
    out = python(REPORT_HEAVY, json.dumps(["stack"]), json.dumps(HEAVY), cwd=tmp_path)
    assert json.loads(out) == []


def test_core_and_passes_load_no_framework(tmp_path: Path) -> None:
    out = python(REPORT_HEAVY, json.dumps(CORE), json.dumps(HEAVY), cwd=tmp_path)
    assert json.loads(out) == []


def test_core_imports_where_only_numpy_is_installed(tmp_path: Path) -> None:
    """A core module that swallows an ImportError would pass the test above and fail here."""
    code = """
import importlib, json, sys, sysconfig
from importlib.machinery import PathFinder
site = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
class OnlyNumPy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and name not in ("numpy", "stack"):
            if PathFinder.find_spec(name, [p for p in sys.path if p in site]):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None
sys.meta_path.insert(0, OnlyNumPy)
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
"""
    python(code, json.dumps(CORE), cwd=tmp_path)


# --- entry points --------------------------------------------------------------------------------

ENTRY_POINTS = sorted(
    (group, name, value)
    for group, entries in (
        *PROJECT["project"]["entry-points"].items(),
        ("console_scripts", PROJECT["project"]["scripts"]),
    )
    for name, value in entries.items()
)


@pytest.mark.parametrize(("group", "name", "value"), ENTRY_POINTS)
def test_entry_point_loads(group: str, name: str, value: str) -> None:
    try:
        importlib.metadata.EntryPoint(name, value, group).load()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"needs {error.name}")


def test_installed_entry_points_are_the_declared_ones() -> None:
    """An editable install keeps the entry points of the day it was made: `make` renews it."""
    found = importlib.metadata.distribution("stack-compiler").entry_points
    installed = sorted((e.group, e.name, e.value) for e in found)
    assert installed == ENTRY_POINTS, "pyproject.toml changed since the install: run `make install`"


# --- the wheel -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build in place leaves folders there that a later build picks up."""
    source = tmp_path_factory.mktemp("source")
    for path in git_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path, follow_symlinks=False)
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)],
        cwd=source,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def imported(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The outcome of importing each module from the unpacked wheel, elsewhere."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    code = """
import importlib, json, sys, traceback
root = sys.argv[1]
sys.path[:] = [p for p in sys.path if p != root]  # where an editable install points
found = {}
for name in json.loads(sys.argv[2]):
    try:
        found[name] = {"file": importlib.import_module(name).__file__}
    except ModuleNotFoundError as error:
        found[name] = {"missing": error.name or "", "error": traceback.format_exc(limit=-1)}
    except BaseException:
        found[name] = {"error": traceback.format_exc(limit=-1)}
print()
print(json.dumps(found))
"""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    out = python(code, str(ROOT), json.dumps(MODULES), cwd=elsewhere, path=unpacked)
    found = json.loads(out)
    for result in found.values():
        if "file" in result:
            inside = Path(result["file"]).resolve().is_relative_to(unpacked.resolve())
            result["inside"] = "yes" if inside else "no"
    return found


def test_wheel_holds_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {n for n in archive.namelist() if n.startswith("stack/")}
    notes = (".md", ".gitignore")
    expected = {f"stack/{p}" for p in FILES if not p.endswith(notes)}
    assert held == expected, "files other than .py are listed in tool.setuptools.package-data"


def test_wheel_installs_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {n.split("/")[0] for n in archive.namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"stack"}
    assert len(tops) == 2


def test_wheel_says_how_it_is_licensed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
        held = archive.namelist()
    assert "License-Expression: Apache-2.0" in text
    assert any(n.endswith("/licenses/LICENSE") for n in held)


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_from_the_wheel(module: str, imported: dict[str, dict[str, str]]) -> None:
    result = imported[module]
    missing = result.get("missing", "").split(".")[0]
    if missing in OPTIONAL:
        pytest.skip(f"needs {missing}")
    assert "error" not in result, result["error"]
    assert result["inside"] == "yes", f"came from {result['file']}, not from the wheel"


@pytest.mark.parametrize("module", TESTED)
def test_the_extras_ask_for_the_tested_releases(module: str) -> None:
    tested = TESTED[module]
    wanted = PROJECT["project"]["optional-dependencies"][module][0].partition(";")[0].strip()
    major, minor = tested.newest.split(".")
    oldest, newest = re.fullmatch(rf"{tested.distribution}>=([\d.]+),<([\d.]+)", wanted).groups()  # pyright: ignore
    assert tested.holds(oldest)
    assert newest == f"{major}.{int(minor) + 1}"
