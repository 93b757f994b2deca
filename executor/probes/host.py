"""Host time outside of kernels: dispatch, modules, autograd, reading a value, events."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import default_collate

from executor.probes.bench import Bench

_LEAVES = 8
_NODES, _LONGER = 8, 3
"""Nodes of the chain with which autograd is timed, and how many times longer the second chain is."""
_ROUNDS = 5


def dispatch(bench: Bench) -> None:
    """Host seconds of one op, one module call, one autograd node, one `.item()`, one collated sample; on a GPU also of an event."""
    bench.phase("dispatch")
    device = bench.world.device
    x, w, b = torch.ones(8, 8, device=device), torch.ones(8, 8, device=device), torch.ones(8, device=device)
    module = nn.Linear(8, 8, device=device)
    with torch.no_grad():
        kernel = bench.add(
            "host", "kernel", "", (), _kernel(bench) if bench.world.kind == "cuda" else bench.times([lambda: torch.add(x, w)])
        )
        plain = median(bench.times([lambda: F.linear(x, w, b)]))
        called = bench.times([lambda: module(x)])
        bench.add("host", "module", "", (), [t - plain for t in called])
        if bench.world.kind == "cuda":
            bench.add("host", "convolution", "", (), [t - kernel for t in _convolution(bench)])
    bench.add("host", "autograd", "", (), _autograd(bench))
    bench.add("host", "accumulate", "", (), _accumulate(bench, x))
    loss = x.sum()
    bench.add("host", "log", "", (), bench.times([lambda: loss.item()]))
    if bench.world.kind == "cuda":
        event = bench.cuda.event(timing=False)
        bench.add("host", "event", "", (), bench.times([lambda: event.record()]))
    samples = [torch.ones(64) for _ in range(32)]
    bench.add("host", "collate", "", (), [t / 32 for t in bench.times([lambda: default_collate(samples)])])


def _kernel(bench: Bench) -> list[float]:
    """Seconds to launch a kernel: the mean over the kernels of a transformer layer's forward and backward, in their numbers. On a GPU one
    value stands for all kernels; an add, the cheapest to call, takes half as long as a GEMM or fused attention (which looks up its plan
    each time)."""
    x, w = (torch.full((64, 64), 0.02, device=bench.world.device, dtype=torch.bfloat16) for _ in range(2))
    b, heads = x[0].clone(), x.view(1, 1, 64, 64)
    mix: list[tuple[int, Callable[[], object]]] = [
        (4, lambda: F.linear(x, w, b)),
        (8, lambda: torch.mm(x, w)),
        (4, lambda: x.sum(0)),
        (4, lambda: F.layer_norm(x, (64,), b, b)),
        (2, lambda: F.gelu(x)),
        (2, lambda: F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)),
        (4, lambda: torch.add(x, w)),
        (1, lambda: torch.cat((x, w))),
    ]

    def layer() -> None:
        for count, call in mix:
            for _ in range(count):
                call()

    launched = sum(count for count, _ in mix)
    return [t / launched for t in bench.times([layer])]


def _convolution(bench: Bench) -> list[float]:
    """Seconds to launch a call of cuDNN: the mean over a convolution's forward and two gradients, and a batch norm."""
    last = torch.channels_last
    x = torch.full((4, 64, 8, 8), 0.5, device=bench.world.device, dtype=torch.bfloat16).contiguous(memory_format=last)
    w = torch.full((64, 64, 3, 3), 0.02, device=bench.world.device, dtype=torch.bfloat16).contiguous(memory_format=last)
    mean, variance, scale, offset = (torch.ones(64, device=bench.world.device) for _ in range(4))

    def both_ways() -> None:
        F.batch_norm(F.conv2d(x, w, padding=1), mean, variance, scale, offset, training=True)
        torch.ops.aten.convolution_backward(x, x, w, [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])

    return [t / 4 for t in bench.times([both_ways])]


def _autograd(bench: Bench) -> list[float]:
    """Seconds per autograd node: forward and backward of a chain of different ops, less the same kernels called one by one. On a GPU
    backward runs on the device's thread, for which the host waits once in a step: in the difference of two chains, one `_LONGER` times as
    long, this is left out."""
    chain, plain = _chains(bench, 1)
    if bench.world.kind == "cpu":
        kernels = _plain(bench, plain, 40)
        return [(t - kernels) / _NODES for t in bench.times([chain], least=40)]
    long, many = _chains(bench, _LONGER)
    found = list[float]()
    for _ in range(_ROUNDS):  # changes of the machine's speed between rounds are in none of the differences
        kernels = _plain(bench, many, 10) - _plain(bench, plain, 10)
        spent = median(bench.times([long], least=10)) - median(bench.times([chain], least=10))
        found.append((spent - kernels) / ((_LONGER - 1) * _NODES))
    return found


def _plain(bench: Bench, kernels: Callable[[], None], least: int) -> float:
    with torch.no_grad():
        return median(bench.times([kernels], least=least))


def _chains(bench: Bench, turns: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """(forward and backward of `turns` times `_NODES` ops through autograd, the same kernels without autograd)."""
    x = torch.full((8, 64), 0.5, device=bench.world.device)
    leaf, grad, norm = x.clone().requires_grad_(), torch.ones_like(x), torch.ones(64, device=bench.world.device)
    aten = torch.ops.aten

    def forward(y: torch.Tensor) -> torch.Tensor:
        for _ in range(turns):
            y = F.layer_norm(F.gelu(y), (64,), norm, norm)
            y = F.silu(torch.softmax(torch.tanh(torch.sigmoid(F.relu(y) * 2.0)), -1))
        return y

    def chain() -> None:
        torch.autograd.grad(forward(leaf), leaf, grad)

    mean = rstd = torch.ones(8, 1, device=bench.world.device)

    def plain() -> None:
        forward(x)
        for _ in range(turns):
            aten.silu_backward(grad, x)
            aten._softmax_backward_data(grad, x, -1, torch.float32)
            aten.tanh_backward(grad, x)
            aten.sigmoid_backward(grad, x)
            aten.mul(grad, 2.0)
            aten.threshold_backward(grad, x, 0)
            aten.native_layer_norm_backward(grad, x, [64], mean, rstd, norm, norm, [True, False, False])
            aten.gelu_backward(grad, x)

    return chain, plain


def _accumulate(bench: Bench, x: torch.Tensor) -> list[float]:
    """Seconds to accumulate one parameter's gradient: backward to many leaves against one leaf. On a GPU each gradient is a tensor of its
    own, which autograd takes without a copy. The gradient of a sum is an expanded view without memory: its copy would add a launch for each
    parameter, which takes several times as long."""
    own = bench.world.kind == "cuda"
    leaves = [x.clone().requires_grad_() for _ in range(_LEAVES)]
    one = x.clone().requires_grad_()

    def run(inputs: list[torch.Tensor]) -> Callable[[], None]:
        grad = torch.ones(len(inputs), *x.shape, device=x.device)

        def call() -> None:
            y = torch.stack(inputs)
            y.backward(grad) if own else y.sum().backward()  # type: ignore[no-untyped-call]
            for tensor in inputs:
                tensor.grad = None

        return call

    many, few = bench.times([run(leaves)]), median(bench.times([run([one])]))
    return [(t - few) / (_LEAVES - 1) for t in many]
