"""Native code for a hand-written kernel: C through ctypes, CUDA C++ through NVRTC.

Both are compiled at the first call. Arrays are passed as pointers, integers as `int64_t`, floats as
`double`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.releases import install_hint

STATIC_SHARED = 48 << 10  # bytes; a kernel needs an attribute to use more


@dataclass(frozen=True)
class CFunction:
    """A C function that returns nothing, called on dense NumPy arrays and numbers.

    `CC` names the compiler (cc). Raises StackError with its messages.
    """

    source: str
    name: str

    @cached_property
    def _function(self) -> Any:
        return getattr(_library(self.source), self.name)

    def __call__(self, *args: Any) -> None:
        self._function(*map(_c_argument, args))


def _c_argument(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_int64(value) if isinstance(value, int) else ctypes.c_double(value)


@cache
def _library(source: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.so"
        compiler = shlex.split(os.environ.get("CC", "cc"))
        flags = ("-O3", "-march=native", "-shared", "-fPIC", "-x", "c", "-", "-o", str(file), "-lm")
        done = subprocess.run([*compiler, *flags], input=source, capture_output=True, text=True)
        if done.returncode:
            raise StackError(f"{compiler[0]} refused a kernel:\n{done.stderr}")
        return ctypes.CDLL(str(file))  # mapped, so the file can be deleted


@dataclass(frozen=True)
class CudaFunction:
    """A kernel of CUDA C++ (`extern "C" __global__`), called on torch tensors and numbers.

    Attributes:
        shared: bytes of dynamic shared memory.
        is_early: True if it starts before earlier kernels end, and waits for their results itself
            (`griddepcontrol.wait`).
    """

    source: str
    name: str
    shared: int = 0
    is_early: bool = False

    def cubin(self, arch: str) -> bytes:
        """Returns machine code for "sm_90"; needs no GPU. Raises StackError with NVRTC's log."""
        return bytes(_compiled(self.source, arch).code)

    def __call__(self, blocks: int, threads: int, *args: Any) -> None:
        """Launches on torch's current stream."""
        import torch

        core = _core()
        major, minor = torch.cuda.get_device_capability()
        device, arch = torch.cuda.current_device(), f"sm_{major}{minor}"
        kernel = _loaded(self.source, self.name, arch, device, self.shared)
        stream = core.Stream.from_handle(torch.cuda.current_stream().cuda_stream)
        early = {"programmatic_stream_serialization": True} if self.is_early else {}
        config = core.LaunchConfig(grid=blocks, block=threads, shmem_size=self.shared, **early)
        core.launch(stream, config, kernel, *_cuda_arguments(args))


def missing_nvrtc() -> str:
    """Returns the packages needed to compile CUDA C++, or "" if they are installed."""
    if find_spec("cuda") and find_spec("cuda.core"):
        return ""
    return f"CUDA C++ needs the extra: {install_hint('cuda')}"


def _core() -> Any:
    return importlib.import_module("cuda.core")


def _cuda_arguments(args: Sequence[Any]) -> list[Any]:
    return [
        a.data_ptr() if hasattr(a, "data_ptr") else np.int64(a) if isinstance(a, int) else float(a)
        for a in args
    ]


@cache
def _compiled(source: str, arch: str) -> Any:
    core = _core()
    try:
        return core.Program(source, "c++", core.ProgramOptions(arch=arch)).compile("cubin")
    except Exception as error:
        raise StackError(f"NVRTC refused a kernel for {arch}: {error}") from error


@cache
def _loaded(source: str, name: str, arch: str, device: int, shared: int) -> Any:
    """Loads the kernel on a device whose context torch has created."""
    _core().Device(device).set_current()
    kernel = _compiled(source, arch).get_kernel(name)
    if shared > STATIC_SHARED:
        driver = importlib.import_module("cuda.bindings.driver")
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(most, shared, kernel.handle, device)
        if status:
            raise StackError(f"{name} cannot have {shared} bytes of shared memory: {status.name}")
    return kernel
