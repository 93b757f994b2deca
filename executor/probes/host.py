"""Time on the CPU that is no kernel: dispatch, modules, autograd, optimizers, DDP, the input path, output."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from executor.probes.bench import Bench
from topologies.errors import RunFailed

_LEAVES = 8


def dispatch(bench: Bench) -> None:
    """One op, one module call, one autograd node, one `.item()`."""
    bench.phase("dispatch")
    device = bench.world.device
    x, w, b = torch.ones(8, 8, device=device), torch.ones(8, 8, device=device), torch.ones(8, device=device)
    module = nn.Linear(8, 8, device=device)
    with torch.no_grad():
        kernel = bench.add("host", "kernel", "", (), bench.times([lambda: torch.add(x, w)]))
        plain = sorted(bench.times([lambda: F.linear(x, w, b)]))
        called = bench.times([lambda: module(x)])
        bench.add("host", "module", "", (), [t - plain[len(plain) // 2] for t in called])
    bench.add("host", "autograd", "", (), _autograd(bench))
    bench.add("host", "accumulate", "", (), _accumulate(bench, x))
    loss = x.sum()
    bench.add("host", "log", "", (), bench.times([lambda: loss.item()]))
    bench.add("host", "python", "", (), bench.times([lambda: None]))
    bench.add("host", "event", "", (), _events(bench))
    samples = [torch.ones(64) for _ in range(32)]
    from torch.utils.data import default_collate

    bench.add("host", "collate", "", (), [t / 32 for t in bench.times([lambda: default_collate(samples)])])
    assert kernel > 0


def middle(times: list[float]) -> float:
    """The median, by order."""
    return sorted(times)[len(times) // 2]


def _autograd(bench: Bench) -> list[float]:
    """Seconds per node: forward and backward of a chain of different ops, less the same kernels called one by one."""
    x = torch.full((8, 64), 0.5, device=bench.world.device)
    leaf, grad, norm = x.clone().requires_grad_(), torch.ones_like(x), torch.ones(64, device=bench.world.device)
    aten = torch.ops.aten

    def forward(y: torch.Tensor) -> torch.Tensor:
        y = F.layer_norm(F.gelu(y), (64,), norm, norm)
        return F.silu(torch.softmax(torch.tanh(torch.sigmoid(F.relu(y) * 2.0)), -1))

    def chain() -> None:
        torch.autograd.grad(forward(leaf), leaf, grad)

    mean = rstd = torch.ones(8, 1, device=bench.world.device)

    def plain() -> None:
        forward(x)
        aten.silu_backward(grad, x)
        aten._softmax_backward_data(grad, x, -1, torch.float32)
        aten.tanh_backward(grad, x)
        aten.sigmoid_backward(grad, x)
        aten.mul(grad, 2.0)
        aten.threshold_backward(grad, x, 0)
        aten.native_layer_norm_backward(grad, x, [64], mean, rstd, norm, norm, [True, False, False])
        aten.gelu_backward(grad, x)

    with torch.no_grad():
        kernels = middle(bench.times([plain], least=40))
    return [(t - kernels) / 8 for t in bench.times([chain], least=40)]


def _accumulate(bench: Bench, x: torch.Tensor) -> list[float]:
    """Seconds per parameter whose gradient is put into place: backward through many leaves against one leaf."""
    leaves = [x.clone().requires_grad_() for _ in range(_LEAVES)]
    one = x.clone().requires_grad_()

    def run(inputs: list[torch.Tensor]) -> Callable[[], None]:
        def call() -> None:
            y = torch.stack(inputs).sum()
            y.backward()  # type: ignore[no-untyped-call]
            for tensor in inputs:
                tensor.grad = None

        return call

    many, few = bench.times([run(leaves)]), middle(bench.times([run([one])]))
    return [(t - few) / (_LEAVES - 1) for t in many]


def _events(bench: Bench) -> list[float]:
    if bench.world.kind == "cpu":
        return [1e-7]  # an event on a CPU is a name in a table; lanes that run inline need none
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return bench.times([lambda: event.record()])


def optimizers(bench: Bench) -> None:
    """Whole `optimizer.step()` by tensors and parameters; per-tensor host time follows from the smallest."""
    bench.phase("optimizers")
    makers: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
        "adamw.foreach": lambda p: torch.optim.AdamW(p, lr=1e-6, foreach=True),
        "adamw.fused": lambda p: torch.optim.AdamW(p, lr=1e-6, fused=True),
        "adamw.for-loop": lambda p: torch.optim.AdamW(p, lr=1e-6, foreach=False, fused=False),
        "adam.foreach": lambda p: torch.optim.Adam(p, lr=1e-6, foreach=True),
        "sgd.foreach": lambda p: torch.optim.SGD(p, lr=1e-6, foreach=True),
        "momentum.foreach": lambda p: torch.optim.SGD(p, lr=1e-6, momentum=0.9, foreach=True),
    }
    shapes = ((4, 1 << 8), (64, 1 << 8), (4, 1 << 16), (4, 1 << 20), (64, 1 << 16))
    for name, make in makers.items():
        for tensors, each in shapes[:3] if bench.quick else shapes:
            parameters = [nn.Parameter(torch.full((each,), 0.02, device=bench.world.device)) for _ in range(tensors)]
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.01)
            bench.add("optimizer", name, "fp32", (tensors, tensors * each), bench.times([make(parameters).step]))
    # What torch.optim chooses by itself: one tensor after the other on CPUs, lists of tensors on CUDA.
    own = "adamw.for-loop" if bench.world.kind == "cpu" else "adamw.foreach"
    small = {s.shape[0]: s for kind, s in bench.found if kind == "optimizer" and s.name == own and s.shape[1] == s.shape[0] << 8}
    slope = (small[64].median - small[4].median) / 60
    bench.add("host", "optimizer", "", (), [slope])
    bench.add("host", "cpu_optimizer", "", (), [_on_cpu(bench)])
    bench.add("host", "optimizer_step", "", (), [max(1e-6, small[4].median - 4 * slope)])


def _on_cpu(bench: Bench) -> float:
    """Seconds per element of the fused update in host memory."""
    if bench.world.kind != "cpu":
        parameter = nn.Parameter(torch.full((1 << 22,), 0.02))
        parameter.grad = torch.full_like(parameter, 0.01)
        return middle(bench.times([torch.optim.AdamW([parameter], lr=1e-6, fused=True).step])) / parameter.numel()
    large = max(
        (s for kind, s in bench.found if kind == "optimizer" and s.name == "adamw.fused" and s.shape[0] == 4), key=lambda s: s.shape[1]
    )
    return large.median / large.shape[1]


class Many(nn.Module):
    """So many small parameters, each used once."""

    def __init__(self, count: int, device: torch.device, width: int = 1024) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(width, device=device)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = x * scale
        return x


def ddp(bench: Bench) -> None:
    """What DistributedDataParallel adds on the host, per step, bucket and parameter, in groups of one rank (no messages)."""
    bench.phase("DDP on the host")
    groups = [dist.new_group([rank]) for rank in range(bench.world.size)]
    alone = groups[bench.world.rank]
    x = torch.ones(1024, device=bench.world.device)

    def seconds(count: int, bucket: float | None) -> float:
        module: nn.Module = Many(count, bench.world.device)
        if bucket is not None:
            module = DistributedDataParallel(module, process_group=alone, bucket_cap_mb=bucket)

        def step() -> None:
            module(x).sum().backward()
            module.zero_grad()

        for _ in range(3):  # DDP rebuilds its buckets after the first step
            step()
        return middle(bench.times([step], least=15))

    bare, more = seconds(16, None), seconds(48, None)
    single, single_more, each = seconds(16, 25), seconds(48, 25), seconds(16, 0.004)
    bucket = max(1e-7, (each - single) / 15)
    parameter = max(1e-8, ((single_more - more) - (single - bare)) / 32)
    bench.add("host", "ddp_bucket", "", (), [bucket])
    bench.add("host", "ddp_parameter", "", (), [parameter])
    bench.add("host", "ddp_step", "", (), [max(1e-6, single - bare - bucket - 16 * parameter)])


class _Blank(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that take no work: what is left is the hand-over."""

    def __init__(self, size: int, count: int) -> None:
        self.sample, self.count = torch.zeros(size, dtype=torch.uint8), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


def loader(bench: Bench) -> None:
    """Hand-over of one batch from a worker process, by bytes: seconds per batch when the worker does nothing else."""
    import time

    bench.phase("data loader")
    for size in (1 << 10, 1 << 16, 1 << 20, 4 << 20)[: 2 if bench.quick else 4]:
        count = 16 if size >= 1 << 20 else 40
        source = torch.utils.data.DataLoader(_Blank(size, count), batch_size=None, num_workers=1, prefetch_factor=2)
        times, last = [], time.perf_counter()
        for batch in source:
            batch.sum()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            bench.world.beat.touch()
        bench.add("loader", "batch", "", (size,), times[3:])
        ready = torch.utils.data.DataLoader(_Blank(size, 8), batch_size=None, num_workers=1, prefetch_factor=8)
        bench.add("loader", "take", "", (size,), _take(ready))

    small = [s.median for kind, s in bench.found if kind == "loader" and s.name == "take"]
    bench.add("host", "loader", "", (), small[:2])


def _take(source: torch.utils.data.DataLoader[torch.Tensor]) -> list[float]:
    """The training process's share: taking a batch that is ready."""
    import time

    batches = iter(source)
    next(batches)
    time.sleep(0.15)
    found = []
    for _ in range(5):
        start = time.perf_counter()
        next(batches)
        found.append(time.perf_counter() - start)
    return found


def files(bench: Bench, folder: Path) -> None:
    """Reading from the page cache, and torch.save, by bytes."""
    bench.phase("files")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for size in (1 << 12, 1 << 18, 4 << 20, 32 << 20)[: 3 if bench.quick else 4]:
            path = Path(place) / f"{bench.world.rank}-{size}"
            try:
                path.write_bytes(bytes(size))
                bench.add("file", "read", "", (size,), bench.times([path.read_bytes]))
                tensor = torch.zeros(size // 4)
                bench.add("file", "save", "", (size,), bench.times([lambda: torch.save(tensor, path)], least=3))  # noqa: B023
            except OSError as error:
                raise RunFailed(f"the probe cannot write {size} bytes into {place}: {error.strerror}") from None
    saved = [s for kind, s in bench.found if kind == "file" and s.name == "save"]
    bench.add("host", "checkpoint", "", (), [saved[0].median])
