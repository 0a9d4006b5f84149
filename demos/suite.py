"""The programs of `stackc bench models`: models as people write them, two layers at real widths.

    program("llama", device="cuda", train=True)

gives what is timed. Weights are random, nothing is downloaded. A program on a CPU is a smaller
member of its family on a shorter input, in f32; on a GPU weights and inputs are bf16.
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


def program(name: str, device: str = "cpu", train: bool = False) -> ModelProgram:
    """A program by its name. Raises KeyError for one that is not in `FAMILIES`."""
    family = next((f for f, names in FAMILIES.items() if name in names), None)
    if family is None:
        raise KeyError(f"no program {name!r}; there are: {', '.join(sum(FAMILIES.values(), ()))}")
    make = importlib.import_module(f"stack.demos.suite_{family}").PROGRAMS[name]
    setting = Setting(device, train)
    framework = "jax" if family == "jax" else "torch"
    fn, args = make(setting) if framework == "jax" else _placed(make, setting)
    return ModelProgram(framework, fn, args, train)


def target(name: str, device: str = "cpu", train: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """The same as a target of the command line: `(callable, args)`."""
    made = program(name, device, train)
    return made.fn, made.args


def _placed(
    make: Callable[[Setting], tuple[Any, tuple[Any, ...]]], setting: Setting
) -> tuple[Any, tuple[Any, ...]]:
    """A module and its inputs on the device, in the element type of the setting."""
    import torch

    torch.manual_seed(0)
    kind = torch.bfloat16 if setting.large else torch.float32
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
