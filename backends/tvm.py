"""The peer TVM: torch.export of our replay, Relax, MetaSchedule, LLVM."""

from __future__ import annotations

from typing import Any

from stack.ir.func import Func
from stack.run.backend import Backend, Executable, Lowering, Peer

from .peer import is_from, need, refuse


def compile_tvm(func: Func, options: dict[str, Any]) -> Executable:
    """Compile the replay of a function with TVM, for the CPU or a GPU.

    TVM's untuned CPU code consists of naive loops, so it is tuned by default. Schedules are cached
    in the cache directory (STACK_CACHE_DIR), by workload, target and version.

    Options:
        seconds: tuning time, 0 for none (default 20). Heavy functions get at least one batch of
            candidates, others at least one candidate, however short the time.
        trials: maximum number of candidates for each heavy workload (default 64). Above the default
            they are guided by TVM's cost model (XGBoost); else they are drawn at random.
        seed: of the search (default 0).
        bound: storage arrays of the first parameters, compiled in as constants, which TVM can
            transpose and pack. `run` still takes all parameters.
        cache: the folder for schedules, so that one search serves runs that start from empty
            caches; False to tune again and save nothing.
        device: "cuda" for dlight's default GPU schedules, which are not tuned.
    """
    if str(options.get("device") or "").startswith("cuda"):
        from .peer_tvm_gpu import compile_replay as compile_for_gpu

        return compile_for_gpu(func, options)
    from .peer_tvm import compile_replay

    return compile_replay(func, options)


def native_tvm(captured: Any, options: dict[str, Any]) -> Executable:
    """`torch.export` of the user's callable, its weights compiled in. Options as for `compile`."""
    if not is_from("torch", captured):
        raise refuse("tvm", "torch")
    from .peer_tvm import compile_native

    return compile_native(captured, options)


BACKEND = Backend(
    name="tvm",
    compile=compile_tvm,
    missing=need("tvm", "tvm"),
    lowering=Lowering(artifacts=("tir",)),
    options=("cache", "device", "seconds", "seed", "trials"),
    peer=Peer(native_tvm, isolate=True),
)
