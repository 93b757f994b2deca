"""One forward and backward pass of a module under fake tensors, recorded by a `Recorder`."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.overrides import TorchFunctionMode

from executor.recording.aten import tensors_of
from executor.recording.builder import Input
from executor.recording.recorder import Recorder
from topologies.errors import BadInput

_DTYPES = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int64": torch.int64, "int32": torch.int32, "bool": torch.bool,
}  # fmt: skip


class Fused(TorchFunctionMode):
    """Replaces functions that are one kernel on a GPU, but that torch decomposes on a CPU, or on some CPUs in some dtypes.

    RMSNorm runs as a LayerNorm without bias, which moves the same bytes; an LSTM, GRU or plain RNN runs as one call for each layer and
    direction.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.rms_norm, torch.nn.functional.rms_norm):
            return _layer_norm(*args, **(kwargs or {}))
        # Only padded batches: calls with packed ones have the lengths before the states.
        name = getattr(func, "__name__", "")
        if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and len(args) == 9 and isinstance(args[2], (tuple, list)):
            return _recurrent(func, *args)
        return func(*args, **(kwargs or {}))


def _layer_norm(input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None) -> torch.Tensor:
    """The arguments have the names of torch.rms_norm's, as callers may pass them by name."""
    return torch.layer_norm(input, normalized_shape, weight, None, eps or 1e-6)


def _recurrent(
    func: Any, x: Any, hx: Any, weights: Any, biased: bool, layers: int, dropout: float, train: bool, both: bool, first: bool
) -> Any:
    """torch.lstm, gru, rnn_tanh or rnn_relu of a padded batch, layer by layer as aten::mkldnn_rnn_layer, whatever the dtype. Under fake
    tensors only the shapes count, so this op stands for all four; the number of gates follows from the weights' rows."""
    ways, each, cells = 1 + both, 4 if biased else 2, isinstance(hx, (tuple, list))
    if len(weights) != layers * ways * each:  # projections
        return func(x, hx, weights, biased, layers, dropout, train, both, first)
    x = x.transpose(0, 1) if first else x
    ends: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(layers):
        sides: list[torch.Tensor] = []
        for at in range(layer * ways, (layer + 1) * ways):
            own = list(weights[at * each : (at + 1) * each])
            if not biased:
                own += [own[1].new_zeros(own[1].shape[0])] * 2
            before = (hx[0][at], hx[1][at]) if cells else (hx[at], hx[at])
            y, h, c, _ = torch.ops.aten.mkldnn_rnn_layer(
                x, *own, *before, at % ways == 1, [], 2, own[1].shape[1], 1, True, False, False, train
            )
            sides, ends = [*sides, y], [*ends, (h, c)]
        x = torch.cat(sides, -1) if both else sides[0]
        if dropout and train and layer + 1 < layers:
            x = torch.dropout(x, dropout, train)
    last = [torch.stack([end[i] for end in ends]) for i in range(1 + cells)]
    return (x.transpose(0, 1) if first else x), *last


def record(build: Callable[[], torch.nn.Module], inputs: tuple[Input, ...], precision: str) -> Recorder:
    """The recorder after one pass. Raises `BadInput`, which names the module, if the code fails or needs a tensor's values."""
    try:
        return _recorded(build, inputs, _DTYPES[precision])
    except BadInput as error:
        wrong = str(error)
    # Frees now what the error held of the failed pass: fake tensors that are freed when the interpreter exits corrupt its memory.
    gc.collect()
    raise BadInput(wrong)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silences torch's log of fake tensors: it logs a traceback if it finds no shape for an op's result, which is reported here once
    anyway."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _recorded(build: Callable[[], torch.nn.Module], inputs: tuple[Input, ...], dtype: torch.dtype) -> Recorder:
    with FakeTensorMode(allow_non_fake_inputs=True), _unlogged():
        model = _built(build, dtype)
        values = [_value(one, dtype) for one in inputs]
        recorder = Recorder(model)
        recorder.give([*values, *model.buffers()])
        try:
            with recorder, Fused():
                with torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor):
                    out = model(*values)
                    loss = _loss(out)
                recorder.turn(out)
                loss.backward()  # type: ignore[no-untyped-call]
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise BadInput(
                f"{recorder.place} decides by the values of a tensor ({error}); fake tensors have none. Replace the branch by torch.where "
                "and boolean indexing by a mask, or capture the part around it"
            ) from None
        except BadInput:
            raise
        except Exception as error:  # the module's own code, whatever it does
            shapes = ", ".join(f"{'x'.join(map(str, one.shape))}:{one.dtype}" for one in inputs)
            raise BadInput(f"{recorder.place} fails on inputs {shapes}: {type(error).__name__}: {error}") from None
    return recorder


def _built(build: Callable[[], torch.nn.Module], dtype: torch.dtype) -> torch.nn.Module:
    """The module, built with parameters of `dtype`: fake parameters cannot be converted afterwards. Raises `BadInput` if the builder
    fails."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with warnings.catch_warnings():  # a deep copy of a parameter (nn.TransformerEncoder) asks for its address
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            model = build()
    except Exception as error:  # the builder's own code, whatever it does
        raise BadInput(f"the builder failed: {type(error).__name__}: {error}. It is called without arguments, under fake tensors") from None
    finally:
        torch.set_default_dtype(before)
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"the builder returned {type(model).__name__}, not a torch.nn.Module")
    return model.train()


def _value(one: Input, dtype: torch.dtype) -> torch.Tensor:
    kind = _DTYPES[one.dtype]
    if kind.is_floating_point:
        return torch.empty(one.shape, dtype=dtype)
    return torch.zeros(one.shape, dtype=kind)


def _loss(out: Any) -> torch.Tensor:
    """The scalar from which backward starts: the output's `loss`, else its first floating-point tensor with a gradient, summed if
    needed."""
    loss = getattr(out, "loss", None)
    found = [loss] if isinstance(loss, torch.Tensor) else [t for t in tensors_of(out) if t.is_floating_point() and t.requires_grad]
    if not found:
        raise BadInput("the model returns no floating-point tensor that needs a gradient: nothing to run backward from")
    return found[0] if found[0].dim() == 0 else found[0].sum()
