"""Everything that we read of torch without a public name, as functions and constants of ours.

Each says what it gives and why torch's public API does not. If a release lacks a name, the import
of this file or the function that reads the name raises ImportError or AttributeError, unless the
docstring says otherwise. Modules that `import torch` does not load, such as Dynamo, are imported
inside of the functions.
"""

# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import global_decomposition_table as _decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._higher_order_ops.effects import _get_effect as get_effect
from torch._higher_order_ops.effects import _register_effectful_op as register_effect
from torch._higher_order_ops.while_loop import while_loop_op
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, disable_functional_mode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes

from stack.frameworks.replaced import replaced

_C: Any = torch._C
_own: Any = torch

# Names of torch's loggers.
FAKE_LOG = "torch._subclasses.fake_tensor"
DYNAMO_LOG = "torch._dynamo"
INDUCTOR_LOG = "torch._inductor"

# ---- profiler

_profiler: Any = torch.autograd.profiler


def is_profiled() -> bool:
    """True while `torch.profiler.profile` or `emit_nvtx` is open; the public API cannot ask."""
    return _profiler._is_profiler_enabled


# ---- operators

# The callables that Dynamo's graphs have as nodes for modes and for `x.data`; compared by identity.
SET_GRAD: Any = _C._set_grad_enabled
ENTER_INFERENCE: Any = torch.autograd.grad_mode._enter_inference_mode
EXIT_INFERENCE: Any = torch.autograd.grad_mode._exit_inference_mode
ENTER_AUTOCAST: Any = torch.amp.autocast_mode._enter_autocast
EXIT_AUTOCAST: Any = torch.amp.autocast_mode._exit_autocast
MODES = (SET_GRAD, ENTER_AUTOCAST, EXIT_AUTOCAST)  # hold for the ops after them
GET_DATA: Any = _C._autograd._get_data_attr
# Functions behind `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` in eval mode.
MULTI_HEAD: Any = _own._native_multi_head_attention
ENCODER_LAYER: Any = _own._transformer_encoder_layer_fwd
# Copies a list of tensors into another one; `torch.optim` uses it, nothing public does this.
copy_all: Any = _own._foreach_copy_
# Raises if sizes differ, also while they are symbols. Documented under this name.
check_sizes: Any = _own._check


# The module of functions of transforms such as `vmap`, by which graphs name them.
FUNCTORCH = "torch._C._functorch"


def is_of_gradients(module: str) -> bool:
    """True if a module's functions may read or change which tensors require gradients."""
    in_c = ("torch._C", "torch._C._autograd", FUNCTORCH)
    return module in in_c or module.startswith(("torch.autograd", "torch._functorch"))


def is_written(op: Any) -> bool:
    """True if an operator writes to an operand, by its schema, which is not public."""
    return bool(op._schema.is_mutable)


@cache
def has_effect(op: Any) -> bool:
    """True if an operator has another effect than its results, such as a write.

    Torch orders the checks of linear algebra like effects; they only raise.
    """
    is_check = op is torch.ops.aten._linalg_check_errors.default
    return bool(op._schema.is_mutable) or (not is_check and get_effect(op) is not None)


def schema_name(op: Any) -> str:
    """Returns the name of an operator with its namespace, without its overload: `aten::mm`."""
    return str(op._schema.name)


@cache
def is_composite(op: Any) -> bool:
    """True if eager runs an operator by calling other operators; torch has no public query."""
    return bool(op.has_kernel_for_dispatch_key(_C.DispatchKey.CompositeImplicitAutograd))


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Returns torch's decompositions of all operators; the public tables are those of exporters."""
    return _decompositions["post_autograd"]


def replace_composite(op: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the Python decomposition of a composite operator, which runs on fake tensors.

    `change` maps the old decomposition to the new one. `torch.library.impl` is no way to do this,
    as it refuses a second kernel for an operator.
    """
    for key in (_C.DispatchKey.CompositeImplicitAutograd, _C.DispatchKey.Autograd):
        op.py_kernels[key] = change(op.py_kernels[key])
    op._dispatch_cache.clear()


def scan(*args: Any) -> Any:
    """Runs torch's scan as an operator; its public function starts Dynamo."""
    from torch._higher_order_ops.scan import scan_op

    return scan_op(*args)


def associative_scan(combine: Callable[..., Any], values: Any, axis: int) -> Any:
    """Runs torch's prototype of an associative scan."""
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(combine, values, axis)


# ---- tensors


def memory_id(tensor: torch.Tensor) -> int:
    """Returns an id of a tensor's memory, the same for all its views, and for fake tensors too."""
    return tensor.untyped_storage()._cdata


def uses_of_memory(memory: int) -> int:
    """Returns the number of references to the memory with an id of `memory_id`."""
    return _C._storage_Use_Count(memory)


# Takes the number of a GPU and returns the handle of its current stream. The public function makes
# a `torch.cuda.Stream`, which takes microseconds. None in a build of torch without CUDA.
stream_handle: Callable[[int], int] | None = getattr(_C, "_cuda_getCurrentRawStream", None)
# Allocate by sizes, strides and element type without the dispatcher: Inductor's own allocators.
empty_on_cpu: Any = _C._dynamo.guards._empty_strided_cpu
empty_on_cuda: Any = _C._dynamo.guards._empty_strided_cuda


def layout_check(args: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Returns a function that is True for tensors with the types, sizes and strides of `args`.

    It is Dynamo's guard in C++.
    """
    guards = _C._dynamo.guards.TensorGuards
    return guards(*args, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors that share memory have an element at the same address."""
    return bool(_C._dynamo.guards.compute_overlapping_tensors([a, b]))


def leaves_of(value: Any) -> list[Any]:
    """Returns the leaves of nested containers, in order; torch documents no pytree module."""
    return pytree.tree_leaves(value)


def is_transformed(tensor: torch.Tensor) -> bool:
    """True for a tensor inside of `vmap` or `grad`: a wrapper whose memory torch does not give."""
    return bool(_C._functorch.is_functorch_wrapped_tensor(tensor))


def symmetric_memory() -> Any:
    """Returns the module for memory that GPUs share; torch documents it under a private name."""
    from torch.distributed import _symmetric_memory

    return _symmetric_memory


def sleep_on_gpu(cycles: int) -> None:
    """Occupies the GPU for a number of clock cycles, so that the CPU can queue work meanwhile."""
    _own.cuda._sleep(cycles)


def sympy_functions() -> Any:
    """Returns the module with the functions in torch's symbolic sizes, such as `FloorDiv`."""
    from torch.utils._sympy import functions

    return functions


# ---- modes


def in_dual_level() -> bool:
    """True inside of `forward_ad.dual_level`, where tensors may have tangents."""
    return torch.autograd.forward_ad._current_level >= 0


# True if autocast is on for some device; the public query is by device.
is_autocast: Callable[[], bool] = _C._is_any_autocast_enabled


def without_autocast() -> AbstractContextManager[Any]:
    """Context without autocast on any device."""
    return _C._DisableAutocast()


def has_saved_tensor_hooks() -> bool:
    """True if hooks on tensors saved for the backward pass are set."""
    return bool(_C._autograd._top_saved_tensors_default_hooks(True))


def has_function_mode() -> bool:
    """True if a torch function mode observes calls."""
    return bool(_C._len_torch_function_stack())


# Context in which operators use their Python kernels, which take symbolic sizes. AOTAutograd traces
# in it.
python_dispatch: Callable[[], AbstractContextManager[Any]] = enable_python_dispatcher


@contextmanager
def below_autocast(device: str) -> Generator[None]:
    """Context that skips a device's autocast kernels: such a kernel can call its operator in it."""
    key = getattr(_C.DispatchKey, f"Autocast{device.upper()}")
    with _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(key)):
        yield


def items_as_indices() -> AbstractContextManager[Any]:
    """Context in which `x[i]` with a tensor `i` can be vmapped, for functions of flex attention."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()


# ---- Dynamo


def dynamo_error() -> type[Exception]:
    """Returns the base class of Dynamo's exceptions."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def dynamo_run_error() -> type[Exception]:
    """Returns the exception for a call that fails while it is traced."""
    from torch._dynamo.exc import TorchRuntimeError

    return TorchRuntimeError


def dynamo_settings(values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Context with the given settings of Dynamo; those that a torch release lacks are ignored."""
    from torch._dynamo import config as dynamo

    return dynamo.patch({name: v for name, v in values.items() if hasattr(dynamo, name)})


def allow_recompiles(count: int) -> None:
    """Sets how often Dynamo captures one code object again, until the process ends."""
    from torch._dynamo import config as dynamo

    dynamo.recompile_limit = count


def compile_lock() -> Any:
    """Returns the lock for the state that all threads share in Dynamo and AOTAutograd."""
    from torch._dynamo.convert_frame import compile_lock

    return compile_lock


def optimized(fn: Any, backend: Callable[..., Any], failed: Callable[[Any], None]) -> Any:
    """Returns `torch.compile(fn, fullgraph=True)` that calls `failed` for each guard that fails."""
    from torch._dynamo import optimize

    return optimize(backend, nopython=True, guard_fail_fn=failed)(fn)


def is_skipped(code: Any) -> bool:
    """True if Dynamo traces a function's code only within others: torch's own, mostly."""
    from torch._dynamo import trace_rules

    return trace_rules.check(code)


def explain(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Returns Dynamo's explanation of the graph breaks of a call."""
    from torch._dynamo import explain

    return explain(fn)(*args)


def on_bytecode(hook: Callable[[Any, Any], Any]) -> Any:
    """Registers a hook that Dynamo calls with the old and new code object of each compiled frame.

    Returns a handle that removes the hook.
    """
    from torch._dynamo.convert_frame import register_bytecode_hook

    register: Any = register_bytecode_hook
    return register(hook)


def capture_whole(fn: Any, args: Sequence[Any]) -> Any:
    """Captures a call as one Dynamo graph, with the bytecode around it.

    `torch.export` only gives ATen graphs. Sizes that are equal in the example are different
    symbols, since they may differ in later calls.
    """
    from torch._dynamo.convert_frame import fullgraph_capture
    from torch._dynamo.utils import dynamo_timed, get_metrics_context
    from torch._export.utils import _compiling_state_context
    from torch.fx.experimental import _config as sizes

    settings: Any = sizes
    with (
        settings.patch(use_duck_shape=False),
        _compiling_state_context(),
        get_metrics_context(),
        dynamo_timed("fullgraph_capture"),
    ):
        return fullgraph_capture(fn, tuple(args), {})


def flattened(gm: Any, inputs: Sequence[Any], compiler: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a graph with a compiler that takes flat inputs.

    Returns a callable for arguments in containers, which it flattens.
    """
    from torch._dynamo.utils import flatten_graph_inputs

    return flatten_graph_inputs(gm, inputs, compiler)


# ---- guards of the graph that Dynamo compiles now; torch has no public guards


def tracing_context() -> Any | None:
    """Returns the state of the trace that is under way; None outside of one."""
    return TracingContext.try_get()


def traced_in(fake_mode: Any, tensors: Any = None) -> AbstractContextManager[Any]:
    """Context that makes `fake_mode` the fake mode of the current trace, outside of Dynamo.

    Args:
        tensors: Dynamo's choice of the sizes that are symbols, if Dynamo traced before.
    """
    context = TracingContext(fake_mode)
    if tensors is not None:
        context.tensor_to_context = tensors
    return tracing(context)


def _sources() -> Any:
    """Returns Dynamo's module of sources, which describe where a traced program read a value."""
    from torch._dynamo import source as places

    return places


def _guard(kind: str) -> Any:
    """Returns the function that adds guards of one kind, such as "CONSTANT_MATCH", in Dynamo."""
    from torch._dynamo.guards import GuardBuilder

    return getattr(GuardBuilder, kind)


def guard_setting(path: Sequence[str]) -> None:
    """Makes Dynamo's graph valid only for the current value of an attribute of the module `torch`.

    `path` are the names from `torch` to the attribute. Does nothing outside of Dynamo.
    """
    made = _sources()
    # older releases only have a source for torch
    setting = made.ImportSource("torch") if hasattr(made, "ImportSource") else made.TorchSource()
    for name in path:
        setting = made.AttrSource(setting, name)
    _add_guard(setting.make_guard(_guard("CONSTANT_MATCH")))


def guard_dual_level() -> None:
    """Makes Dynamo's graph valid only for the current level of `forward_ad`.

    Tensors may have tangents only inside of a level. Does nothing outside of Dynamo.
    """
    _add_guard(_sources().GlobalStateSource().make_guard(_guard("DUAL_LEVEL")))


def _add_guard(guard: Any) -> None:
    """Adds a guard to the graph that Dynamo compiles now. Does nothing outside of Dynamo."""
    context = tracing_context()
    if context is not None:
        context.guards_context.dynamo_guards.add(guard)


def traced_frame() -> Any | None:
    """Returns Dynamo's `OutputGraph` of the frame that it is compiling; None outside of Dynamo."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        return InstructionTranslator.current_tx().output
    except AttributeError:
        return None


def is_of_argument(source: Any) -> bool:
    """True if Dynamo read a value from an argument, not from a global."""
    return _sources().is_from_local_source(source)


def guard_same(source: Any, other: Any) -> None:
    """Makes Dynamo's compiled graph valid only if two sources give the same object.

    A source describes where a traced program read a value, such as a global.
    """
    from torch._dynamo.guards import install_guard

    install_guard(source.make_guard(partial(_guard("DUPLICATE_INPUT"), source_b=other)))


# ---- calls of code that Dynamo compiled: the conditions of the fast path around it


def compiled_entries(code: Any) -> list[Any]:
    """Returns Dynamo's cache entries for a code object."""
    return _C._dynamo.eval_frame._debug_get_cache_entry_list(code)


def without_wrapper(fn: Any) -> Any | None:
    """Returns the function in `torch.compiler.disable(fn)`; None if it is not one."""
    from torch._dynamo.eval_frame import innermost_fn

    is_wrapper = getattr(fn, "_torchdynamo_disable_recursive", False)
    return innermost_fn(fn) if is_wrapper else None


def _is_default(stance: Any) -> bool:
    """True if `torch.compiler.set_stance` has not changed how compiled code behaves."""
    is_usual = stance.stance == "default" and stance.backend is None
    return is_usual and not stance.skip_guard_eval_unsafe


def plain_call_check() -> Callable[[], bool]:
    """Returns a function that is True if nothing around a call changes how compiled code runs.

    That is: no mode, transform, trace, stance or frame callback is active.
    """
    from torch._dynamo import eval_frame

    callback, modes = _C._dynamo.eval_frame.get_eval_frame_callback, _C._len_torch_dispatch_stack
    layers, trace = _C._functorch.get_dynamic_layer_stack_depth, _C._get_tracing_state

    def is_plain() -> bool:
        return (
            _is_default(eval_frame._stance)
            and not callback()
            and not modes()
            and not layers()
            and trace() is None
        )

    return is_plain


# ---- AOTAutograd


def export_with_aot(gm: Any, inputs: Sequence[Any], table: Any) -> tuple[Any, Any]:
    """Returns the ATen graph of a Dynamo graph and its signature, without copies of parameters."""
    from torch._functorch.aot_autograd import aot_export_module

    return aot_export_module(gm, inputs, trace_joint=False, decompositions=table)


def boxed(call: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Marks a function as taking its arguments in one list, which it may empty.

    `functorch.compile.make_boxed_func` copies the list, which keeps its tensors alive.
    """
    marked: Any = call
    marked._boxed_call = True
    return call


def aot_settings(**values: Any) -> AbstractContextManager[Any]:
    """Context with AOTAutograd's settings."""
    from torch._functorch import config as aot

    settings: Any = aot
    return settings.patch(**values)


def overwritten_input(result: Any) -> Any | None:
    """Returns the input that the program overwrites with a result of its AOTAutograd graph.

    Returns None for any other result.
    """
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    return result.mutated_input if isinstance(result, InputMutationAOTOutput) else None


def is_users_result(result: Any) -> bool:
    """True for a result of the program, False for a value saved for the backward pass."""
    from torch._functorch._aot_autograd.descriptors import DifferentiableAOTOutput

    return isinstance(result, DifferentiableAOTOutput)


def whole_value(kind: Any) -> Any:
    """Returns the program's input or output that contains an array of a tensor subclass.

    Returns `kind` itself if it is no part of a subclass.
    """
    from torch._functorch._aot_autograd.descriptors import (
        SubclassGetAttrAOTInput,
        SubclassGetAttrAOTOutput,
    )

    while isinstance(kind, SubclassGetAttrAOTInput | SubclassGetAttrAOTOutput):
        kind = kind.base
    return kind


def is_recomputed(node: Any) -> bool:
    """True if a node of a joint graph lies in a checkpointed region, which backward recomputes."""
    from torch._functorch.partitioners import must_recompute

    return must_recompute(node)


def tag_recomputed(joint: Any) -> None:
    """Removes the tags for recomputation from nodes of a joint graph where it would save nothing.

    Nodes get these tags from activation checkpointing.
    """
    from torch._functorch.partitioners import cleanup_recompute_tags

    cleanup_recompute_tags(joint, is_default_partition=False)


def cut_joint(joint: Any, saved: list[Any], results: int) -> tuple[Any, Any]:
    """Splits a joint graph into torch's forward and backward graph.

    The forward graph returns the values `saved`, which the backward graph takes.
    """
    from torch._functorch.partitioners import _extract_fwd_bwd_modules

    return _extract_fwd_bwd_modules(joint, saved, saved_sym_nodes=[], num_fwd_outputs=results)


class Functional:
    """Wrapped tensors that record in-place writes as new values, as AOTAutograd traces them."""

    def __init__(self) -> None:
        from torch._functorch._aot_autograd import functional_utils

        self.utils: Any = functional_utils

    def enter(self, tensor: Any) -> Any:
        return self.utils.to_fun(tensor)

    def leave(self, value: Any) -> Any:
        return self.utils.from_fun(value)

    def is_written(self, held: Any) -> bool:
        return bool(self.utils.has_data_mutation(held))

    def is_reshaped(self, held: Any, tensor: Any) -> bool:
        """True if sizes, strides or other metadata of `held` now differ from those of `tensor`."""
        check = self.utils.has_metadata_mutation
        return bool(check(held, tensor, check_only_storage_mutation=False))


# ---- Inductor, a peer


def inductor_modes(mode: str) -> dict[str, Any]:
    """Returns the settings of a mode of `torch.compile`; `torch._inductor` documents it."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode))


def inductor_compile(graph: Any, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """Compiles an FX graph with Inductor, without Dynamo."""
    from torch._inductor import compile

    return compile(graph, list(inputs), options=options)


def inductor_backend(graph: Any, inputs: Any, options: dict[str, Any]) -> Any:
    """Compiles a graph with Inductor, as a backend to pass to Dynamo as a function.

    If passed by name, Dynamo would reuse code compiled before.
    """
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, config_patches=options)


def inductor_settings(values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Context with Inductor's settings."""
    from torch._inductor import config as inductor

    return inductor.patch(dict(values))


def inductor_caches(**options: Any) -> AbstractContextManager[Any]:
    """Context with empty caches of Inductor, on disk and in memory."""
    from torch._inductor.utils import fresh_cache

    return fresh_cache(**options)


@contextmanager
def inductor_record(
    code: Callable[[str], None],
    defined: Callable[..., None] | None = None,
    called: Callable[..., None] | None = None,
) -> Generator[None]:
    """Context that reports what Inductor writes, by its hook for tests, `save_output_code`.

    Inductor has no hook for kernels and library calls. So its methods that generate them are
    replaced: the one exception to the rule against this. Without such a method in a release, those
    are not reported.

    Args:
        code: takes the text of each wrapper.
        defined: takes the result and arguments of each definition of a kernel.
        called: takes the result and arguments of each call of a library.
    """
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.graph import GraphLowering
    from torch._inductor.scheduler import Scheduler

    with ExitStack() as stack:
        stack.enter_context(replaced(GraphLowering, "save_output_code", staticmethod(code)))
        for owner, name, note in (
            (CppScheduling, "define_kernel", defined),
            (TritonScheduling, "define_kernel", defined),
            (Scheduler, "codegen_extern_call", called),
        ):
            if note is not None and hasattr(owner, name):
                stack.enter_context(replaced(owner, name, _noting(getattr(owner, name), note)))
        yield


def _noting(inner: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    """Returns a method that also passes its result and arguments to `note`."""

    def method(this: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(this, *args, **kwargs)
        note(result, *args)
        return result

    return method


# ---- DTensor, a peer


def process_group(name: Any) -> Any:
    """Returns the process group with the name that a collective has as an operand."""
    return _C._distributed_c10d._resolve_process_group(name)


def fake_store() -> Any:
    """Returns the store of torch's fake process groups, whose ranks run nowhere."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


__all__ = [
    "FakeTensor", "FakeTensorMode", "FunctionalTensorMode", "HigherOrderOperator", "OpOverload",
    "OpOverloadPacket", "TorchDispatchMode", "disable_functional_mode", "get_effect", "pytree",
    "register_effect", "while_loop_op", "without_modes",
]  # fmt: skip
