"""TVM on a GPU: dlight's default schedules, compiled by NVRTC or nvcc.

Relax lowers the replay. Nothing is tuned; with hours of search TVM can do better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import tvm
from tvm import relax
from tvm.s_tir import dlight

from stack.errors import StackError
from stack.ir.func import Func
from stack.run.backend import Executable, Kernel

from .device.tensors import adopt, download, upload
from .peer import Origins, quiet
from .peer_tvm import LOGGERS, culprit, export_func, import_program
from .peer_tvm_lower import called, lower

T: Any = relax.transform


def gpu_target(capability: str) -> Any:
    """The CUDA target for a GPU such as "sm_90"."""
    return tvm.target.Target({"kind": "cuda", "arch": capability, "max_num_threads": 1024,
                              "max_threads_per_block": 1024, "thread_warp_size": 32,
                              "max_shared_memory_per_block": 49152})  # fmt: skip


def schedule(func: Func, target: Any) -> Any:
    """The module with a schedule for every function. Raises StackError."""
    with quiet(*LOGGERS):
        module, _ = import_program(export_func(func, Origins(func), ()), lambda _: None)
        try:
            fused = lower(module, target)
            with target:
                fused = T.FuseTIR()(T.FuseOps()(fused))
                scheduled: Any = dlight.ApplyDefaultSchedule(
                    dlight.gpu.Matmul(),
                    dlight.gpu.GEMV(),
                    dlight.gpu.Reduction(),
                    dlight.gpu.GeneralReduction(),
                    dlight.gpu.Fallback(),
                )
                return scheduled(fused)
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise StackError(f"tvm failed at {culprit(error)}: {first}") from error


def compile_replay(func: Func, options: dict[str, Any]) -> Executable:
    """See `tvm.compile_tvm`; arrays are torch tensors, shared through DLPack."""
    device = torch.device(options["device"])
    found = torch.cuda.get_device_properties(device)
    target = gpu_target(f"sm_{found.major}{found.minor}")
    module = schedule(func, target)
    try:
        built = tvm.compile(module, target=target)
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise StackError(f"tvm cannot build for {target}: {first}") from error
    here: Any = tvm.cuda(device.index or 0)
    main = relax.VirtualMachine(built, here)["main"]
    entering = [p.tensor for p in func.params]
    leaving = [r.tensor for r in func.results]

    def accept(arrays: Sequence[Any]) -> tuple[Any, ...]:
        held = adopt(arrays, entering, device)
        torch.cuda.synchronize(device)  # TVM uses a stream of its own
        return tuple(tvm.runtime.from_dlpack(x) for x in held)

    def call(given: tuple[Any, ...]) -> list[torch.Tensor]:
        made = main(*given)
        made = [made] if isinstance(made, tvm.runtime.Tensor) else list(made)
        return [torch.from_dlpack(x) for x in made]

    def wait() -> None:
        here.sync()

    def run(arrays: Sequence[Any]) -> list[Any]:
        made = call(accept(upload(arrays, entering, device)))
        wait()
        return download(made, leaving)

    kernels = [Kernel(name, "generated") for name in called(module)]
    return Executable(
        run=run,
        kernels=kernels,
        artifacts={"tir": lambda: module.script(show_meta=False)},
        counts_what="TIR functions that Relax's main calls, all generated",
        prepare=lambda arrays: accept(upload(arrays, entering, device)),
        call=call,
        finish=lambda made: download(made, leaving),
        device=str(device),
        accept=accept,
        wait=wait,
        arrays="torch",
        note=f"tvm {tvm.__version__}, the IR's replay, dlight's default schedules, untuned",
    )
