"""The programs of `stackc bench models`: models as people write them, two layers at real widths.

    program("llama", device="cuda", train=True)

gives what is timed. Weights are random, nothing is downloaded. A program on a CPU is a smaller
member of its family on a shorter input. Weights and inputs of a torch program are f32 or bf16 on a
CPU, bf16 on a GPU; a JAX program has the types that it was written with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FAMILIES: dict[str, tuple[str, ...]] = {
    "text": (
        *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "gpt2", "neox", "opt"),
        *("falcon", "bloom", "t5", "bert", "roberta", "distilbert", "olmoe", "mamba", "mamba2"),
        *("llama_written", "gemma3_written"),
    ),
    "vision": ("vit", "deit", "swin", "convnext", "clip"),
    "conv": ("resnet18", "resnet50", "mobilenet", "vgg", "unet"),
    "speech": ("whisper_encoder", "wav2vec2", "conformer"),
    "torch": ("transformer", "encoder", "lstm", "gru", "mixer", "dlrm"),
    "jax": ("rnn_scan", "vmap_attention", "gpt2_jax", "ode_while", "ssm_scan", "mlp_vmap"),
}


@dataclass(frozen=True)
class Setting:
    """Where a program is to run, and whether its gradients are asked for."""

    device: str = "cpu"
    train: bool = False

    @property
    def large(self) -> bool:
        """Whether it has the sizes for a GPU."""
        return self.device != "cpu"


@dataclass(frozen=True)
class ModelProgram:
    """What a person runs.

    Attributes:
        framework: "torch" or "jax".
        fn: called as `fn(*args)`. With `train` it gives, in torch, the loss whose gradients by the
            parameters of `fn` are asked for; in JAX the gradients themselves.
        args: framework arrays on the device.
    """

    framework: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    train: bool = False


def program(
    name: str, device: str = "cpu", train: bool = False, dtype: str | None = None
) -> ModelProgram:
    """A program by its name, in an element type of `dtypes`, the first where none is named.

    Raises KeyError for a program that is not in `FAMILIES`, or a type that it is not written for.
    """
    family = next((f for f, names in FAMILIES.items() if name in names), None)
    if family is None:
        raise KeyError(f"no program {name!r}; there are: {', '.join(sum(FAMILIES.values(), ()))}")
    make = importlib.import_module(f"stack.demos.suite_{family}").PROGRAMS[name]
    setting = Setting(device, train)
    known = dtypes(family, device)
    if dtype is not None and dtype not in known:
        raise KeyError(f"{name} on {device} is no program in {dtype}; it is in {', '.join(known)}")
    framework = "jax" if family == "jax" else "torch"
    fn, args = make(setting) if framework == "jax" else _placed(make, setting, dtype or known[0])
    return ModelProgram(framework, fn, args, train)


def dtypes(family: str, device: str = "cpu") -> tuple[str, ...]:
    """Element types that programs of a family are timed in, the usual one first."""
    if family == "jax":
        return ("f32",)
    return ("f32", "bf16") if device == "cpu" else ("bf16",)


def target(name: str, device: str = "cpu", train: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """The same as a target of the command line: `(callable, args)`."""
    made = program(name, device, train)
    return made.fn, made.args


def _placed(
    make: Callable[[Setting], tuple[Any, tuple[Any, ...]]], setting: Setting, dtype: str
) -> tuple[Any, tuple[Any, ...]]:
    """A module and its inputs on the device, in an element type."""
    import torch

    torch.manual_seed(0)
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    with torch.device(setting.device):
        module, args = make(setting)
    if setting.train:
        module = _loss(module)
    module = module.to(setting.device, kind)
    args = tuple(a.to(kind) if a.is_floating_point() else a for a in args)
    module.train(setting.train).requires_grad_(setting.train)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0  # gradients are to be compared
    return module, args


def _loss(module: Any) -> Any:
    """The module's own loss, or the mean square of its result."""
    import torch

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = module

        def forward(self, *args: Any) -> Any:
            found = self.net(*args)
            return found.square().mean() if found.dim() else found

    return Loss()
