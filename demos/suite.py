"""Programs of `stackc bench models`: unmodified models, two layers at real widths.

    program("llama", device="cuda", train=True)

returns a program to time. Weights are random, nothing is downloaded. On a CPU, a program is a
smaller member of its family on a shorter input. Weights and inputs of a torch program are f32 or
bf16 on a CPU, bf16 on a GPU. A JAX program keeps its own types.
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
        *("llama_written", "gemma3_written", "cohere"),
    ),
    "vision": (
        *("vit", "deit", "swin", "convnext", "clip"),
        *("pvt_v2", "poolformer", "mobilevit"),
    ),
    "conv": ("resnet18", "resnet50", "mobilenet", "vgg", "unet"),
    "speech": ("whisper_encoder", "wav2vec2", "conformer"),
    "torch": ("transformer", "encoder", "lstm", "gru", "mixer", "dlrm"),
    "jax": (
        *("rnn_scan", "vmap_attention", "gpt2_jax", "ode_while", "ssm_scan", "mlp_vmap"),
        *("take_sum", "segment_sum", "top_k", "newton", "gated_scan", "conv_mean", "tanh_vmap"),
        *("block_jax", "layers_scan", "sgd_step"),
    ),
}


@dataclass(frozen=True)
class Setting:
    """Device of a program, and whether it computes gradients."""

    device: str = "cpu"
    train: bool = False

    @property
    def large(self) -> bool:
        """True if it uses the sizes for a GPU."""
        return self.device != "cpu"


@dataclass(frozen=True)
class ModelProgram:
    """A program of the suite.

    Attributes:
        framework: "torch" or "jax".
        fn: called as `fn(*args)`. With `train` it returns, in torch, the loss to differentiate by
            the parameters of `fn`; in JAX the gradients.
        args: framework arrays on the device.
    """

    framework: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    train: bool = False


def program(
    name: str, device: str = "cpu", train: bool = False, dtype: str | None = None
) -> ModelProgram:
    """Returns a program by name, in an element type of `dtypes` (default: the first).

    Raises KeyError for a program that is not in `FAMILIES`, or for a type that it does not support.
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
    """Returns the element types in which programs of a family are timed, the default one first."""
    if family == "jax":
        return ("f32",)
    return ("f32", "bf16") if device == "cpu" else ("bf16",)


def target(name: str, device: str = "cpu", train: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """Returns the program as a target of the command line: `(callable, args)`."""
    made = program(name, device, train)
    return made.fn, made.args


def _placed(
    make: Callable[[Setting], tuple[Any, tuple[Any, ...]]], setting: Setting, dtype: str
) -> tuple[Any, tuple[Any, ...]]:
    """Moves a module and its inputs to the device and element type."""
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
            part.p = 0.0  # gradients are compared
    return module, args


def _loss(module: Any) -> Any:
    """Wraps a module to return its own loss, or the mean square of its result."""
    import torch

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = module

        def forward(self, *args: Any) -> Any:
            found = self.net(*args)
            return found.square().mean() if found.dim() else found

    return Loss()
