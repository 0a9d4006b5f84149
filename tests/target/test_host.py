"""Detection of the target of a machine from Linux's data; missing features are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stack.backends.mlir.compiler import check_runs_here, check_text_runs_here
from stack.errors import UsageError
from stack.target import Cpu, as_cpu, cpu_at_hand, host, load
from stack.target.host import listed, missing_here, name_of

AVX2 = "fpu sse2 ssse3 fma cx16 movbe avx f16c abm bmi1 avx2 bmi2"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
SHORT = "avx512_bf16 avx512_vnni"
AMX = f"{AVX512} {SHORT} amx_bf16 avx512_fp16 amx_tile amx_int8"

# what /proc/cpuinfo says where it matters
MACHINES = {
    "Nehalem": ("x86_64", "fpu sse2 ssse3 sse4_1 sse4_2", "generic", ""),
    "Sandy Bridge": ("x86_64", "fpu sse2 ssse3 avx", "generic", ""),
    "Haswell": ("x86_64", AVX2, "avx2", "avx2 fma f16c bmi2"),
    "Zen 2": ("x86_64", f"{AVX2} clzero rdpru", "avx2", "avx2 fma f16c bmi2"),
    "Knights Landing": ("x86_64", f"{AVX2} avx512f avx512cd", "avx2", "avx2 fma f16c bmi2"),
    "Skylake-X": ("x86_64", AVX512, "avx512", "avx512f avx512bw avx512dq avx512vl"),
    "Ice Lake": (
        "x86_64",
        f"{AVX512} avx512_vnni",
        "avx512",
        "avx512f avx512bw avx512dq avx512vl avx512vnni",
    ),
    "Zen 4": (
        "x86_64",
        f"{AVX512} {SHORT}",
        "avx512",
        "avx512f avx512bw avx512dq avx512vl avx512vnni avx512bf16",
    ),
    "Sapphire Rapids": ("x86_64", AMX, "amx", " ".join(load("amx").features)),
    "Graviton 3": (
        "aarch64",
        "fp asimd atomics fphp asimdhp asimddp sve bf16 i8mm",
        "neon",
        "neon",
    ),
    "Apple M1, macOS": ("arm64", "", "neon", "neon"),
    "RISC-V": ("riscv64", "", "generic", ""),
    "no data": ("x86_64", "", "generic", ""),
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Turn this machine into another one."""

    def become(kind: str, flags: str, may_use_tiles: bool = True) -> Cpu:
        word = "Features" if kind == "aarch64" else "flags"
        told = (
            f"processor\t: 0\n{word}\t\t: {flags}\nbugs\t\t:\n\nprocessor\t: 1\n" if flags else ""
        )
        monkeypatch.setattr(host, "listed", lambda *_: listed(kind, told))
        monkeypatch.setattr(host, "_flags", host._flags.__wrapped__)
        monkeypatch.setattr(host, "_may_use_tiles", lambda: may_use_tiles)
        return cpu_at_hand.__wrapped__()

    return become


@pytest.mark.parametrize("name", MACHINES)
def test_the_target_of_a_machine(name: str, machine: Any) -> None:
    kind, flags, target, features = MACHINES[name]
    cpu = machine(kind, flags)
    assert (cpu.name, cpu.arch, cpu.refused) == (target, "native", "")
    assert cpu.features == tuple(features.split())
    assert not missing_here(cpu.features)


def test_half_of_what_a_target_needs_is_not_enough() -> None:
    assert name_of(frozenset(f"{AVX512} avx512_bf16 amx_tile".split())) == "avx512"
    assert name_of(frozenset({"avx2"})) == "generic"


def test_where_linux_refuses_tiles_the_next_target_is_taken(machine: Any) -> None:
    cpu = machine("x86_64", AMX, may_use_tiles=False)
    assert (cpu.name, cpu.refused) == ("avx512", "Linux does not let this process use AMX")
    assert not any(f.startswith("amx") for f in cpu.features)
    assert "avx512bf16" in cpu.features
    with pytest.raises(UsageError, match="'amx': it has no amx-tile, amx-bf16, amx-int8"):
        check_runs_here(as_cpu(load("amx")))


@pytest.mark.parametrize(
    ("name", "target", "lacks"),
    [
        ("Haswell", "avx512", "avx512f, avx512bw, avx512dq, avx512vl, avx512vnni, avx512bf16"),
        ("Skylake-X", "avx512", "avx512vnni, avx512bf16"),
        ("Zen 4", "neon", "neon"),
        ("Graviton 3", "avx2", "avx2, fma, f16c, bmi2"),
        ("no data", "avx2", "avx2, fma, f16c, bmi2"),
    ],
)
def test_code_for_another_machine_is_refused(
    name: str, target: str, lacks: str, machine: Any
) -> None:
    machine(*MACHINES[name][:2])
    cpu = as_cpu(load(target))
    with pytest.raises(UsageError, match=f"does not run code for target '{target}': .* {lacks};"):
        check_runs_here(cpu)
    asked = ", ".join(f'"+{f}"' for f in cpu.features)
    text = f"llvm.func @k() attributes {{target_features = #llvm.target_features<[{asked}]>}}"
    with pytest.raises(UsageError, match=f"does not run the kernel: it has no {lacks}$"):
        check_text_runs_here(text)


def test_a_machine_that_cannot_be_read_is_generic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path, tmp_path / "nothing"):  # a folder is not read, as what may not be
        monkeypatch.setattr(host, "Path", lambda _, path=path: path)
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        assert host._flags.__wrapped__()[1] == frozenset()
    garbled = tmp_path / "cpuinfo"
    garbled.write_bytes(b"model name\t: \xff\xfe\nflags\t\t: avx2 fma\n")
    monkeypatch.setattr(host, "Path", lambda _: garbled)
    assert host._flags.__wrapped__()[1] == {"avx2", "fma"}


def test_the_cpu_at_hand_lists_only_what_it_has() -> None:
    assert not missing_here(cpu_at_hand().features)
    assert missing_here(["no such thing"]) == ["no such thing"]
    check_text_runs_here("llvm.func @k()")
