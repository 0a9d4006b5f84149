"""Other partitioners: XLA's, Shardy's and DTensor's; frameworks are loaded on use."""

from __future__ import annotations

from stack.ir.func import Func
from stack.run.partitioner import Partition, Partitioner

from .peer import need


def _xla(func: Func) -> Partition:
    from .partition_jax import xla

    return xla(func)


def _shardy(func: Func) -> Partition:
    from .partition_jax import shardy

    return shardy(func)


def _dtensor(func: Func) -> Partition:
    from .partition_dtensor import dtensor

    return dtensor(func)


def _host_devices(ranks: int) -> dict[str, str]:
    flags = f"--xla_force_host_platform_device_count={ranks}"
    return {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


XLA = Partitioner("xla", _xla, need("jax", "jax"), _host_devices)
SHARDY = Partitioner("shardy", _shardy, need("jax", "jax"), _host_devices)
DTENSOR = Partitioner("dtensor", _dtensor, need("torch", "torch"))
