"""Input: loader processes read, preprocess and collate; the training thread takes a batch and copies it to the device.

Workers take batches in turn and keep `prefetch` each in stock, as torch's DataLoader does: batch b is begun when batch
b - prefetch x workers has been taken. Between them and a training thread that has a device, one thread of its process copies batch after batch
into pinned memory (torch/utils/data/_utils/pin_memory.py). Events `ready`, `pinned` and `taken` are numbered by batch. The copy stands on
`copy.h2d` (or on the compute lane); from pageable memory it holds the training thread.
"""

from __future__ import annotations

from functools import partial

from sim.lower.job import Job
from sim.lower.ops import collective, compute, host, order
from sim.program import COMPUTE, H2D, HOST, PINNER, Call, Op
from sim.work import HostWork, MemoryBound

CLS = "data"
_HOW = {"disk": "disk", "object-store": "store", "database": "store", "memory": ""}
"""Source -> the link that its bytes take. A batch that lies on the device takes none, and has no ops."""


def read_bytes(job: Job) -> int:
    """Bytes that one batch of one rank takes from its source."""
    return job.plan.batch.micro * (job.plan.data.sample or job.network.sample_bytes)


def device_bytes(job: Job) -> int:
    """Bytes of one batch on the device."""
    return job.plan.batch.micro * job.network.sample_bytes


def pins(job: Job) -> bool:
    """Whether batches are copied into pinned memory. Without a device, torch's DataLoader leaves that out."""
    return job.plan.data.pinned and job.device != "cpu"


def load(job: Job, lane: str, share: float = 1.0, processes: float = 1.0) -> list[Op]:
    """What one CPU thread does to make one batch, or a `share` of one. `processes`: how many processes of the rank take batches in
    turn.

    Data sets of samples read and collate each of them; those of whole batches (facebookresearch/dlrm's CriteoBinDataset: a slice of one file) do so once.
    """
    data, micro = job.plan.data, job.plan.batch.micro * share
    pieces = share if job.network.whole_batches else micro
    raw, made = read_bytes(job) * share, device_bytes(job) * share
    work = partial(HostWork, processes=processes, share=job.readers)
    ops: list[Op] = []
    if _HOW[data.source]:
        ops.append(Op("data/read", "copy", lane, (work("file", pieces),), bytes=round(raw), how=_HOW[data.source], cls=CLS))
    if data.preprocess:
        ops.append(host("data/preprocess", work("preprocess", micro, data.preprocess, moved=raw + made), lane=lane, cls=CLS))
    # Samples are copied into one batch, and once more into pinned memory: by the thread that loads, or beside loader processes by one of its own,
    # whose share of the memory's bus counts here, where all that batches take of a machine does (`sim.engine.machine`).
    works = [work("collate", pieces, moved=2.0 * made * (1 + pins(job)))]
    if job.device != "cpu":  # where the copy is in what was measured of a sample
        works.append(work("memcpy", made * (1 + (pins(job) and lane == HOST))))
    return [*ops, host("data/collate", *works, lane=lane, cls=CLS)]


def take(job: Job) -> list[Op]:
    """What the training thread does for one micro-batch: waits for the batch, frees its place in the queue, copies it to the device."""
    data = job.plan.data
    if data.source == "device":
        return _created(job)
    if data.workers:
        ops = [
            Op("data/wait", "sync", HOST, event="data/pinned" if pins(job) else "data/ready", shift=0, cls=CLS),
            host("data/take", _taking(job), cls=CLS),
            Op("data/taken", "record", HOST, event="data/taken", shift=0),
        ]
    else:
        ops = load(job, HOST)
    ops = ops if job.device == "cpu" else [*ops, *_to_device(job), *_broadcast(job)]
    return [*ops, *_created(job)]


def _taking(job: Job) -> HostWork:
    """The host's work to take a batch over from a loader process. Who first reads the batch pays for its pages: the thread that pins,
    or the training thread's copy from pageable memory."""
    if pins(job):
        return HostWork("take_pinned")
    return HostWork("loader") if job.device == "cpu" else HostWork("pin", device_bytes(job))


RANDOM = 4e-9
"""CPU seconds per fp32 number of `torch.rand` on one core: its Mersenne Twister runs on one thread (assumed: 2-6 ns on cores of 2.5-4 GHz)."""


def _created(job: Job) -> list[Op]:
    """Makes a new tensor of the batch's size, on the host (`torch.rand(n).to(device)`) or on the device
    (`torch.rand(n, device=device)`); empty where the plan asks for none."""
    size = device_bytes(job)
    if job.plan.data.create == "none" or not size:
        return []
    if job.plan.data.create == "device" and job.device != "cpu":
        return [compute(job, "data/create", (MemoryBound("dropout", 0, size, "fp32"),), CLS)]
    made = host("data/create", HostWork("preprocess", size / 4, RANDOM), cls=CLS)
    if job.device == "cpu":
        return [made]
    return [made, Op("data/move", "copy", COMPUTE, bytes=size, how="pageable", cls=CLS, blocking=True)]


def _to_device(job: Job) -> list[Op]:
    data, size = job.plan.data, device_bytes(job)
    if not size:
        return []
    lane = H2D if data.stream == "copy" else COMPUTE
    how = "pinned" if data.pinned else "pageable"
    copy = Op("data/h2d", "copy", lane, bytes=size, how=how, cls=CLS, blocking=not data.pinned)
    if lane == COMPUTE or data.handover == "none":
        return [copy]
    if data.handover == "synchronize":
        return [copy, Op("data/synchronize", "sync", HOST, name=H2D, cls=CLS)]
    return [copy, *order(job, "data/on-device", H2D, COMPUTE)]


def _broadcast(job: Job) -> list[Op]:
    """Sends a batch that one rank of a tensor-parallel group has read to the whole group, in one broadcast. Every rank's program copies
    a batch to its device, so that all programs are alike; the broadcast makes each wait for the reader's."""
    size = device_bytes(job)
    return [collective(job, "data/broadcast", COMPUTE, "broadcast", size, "tp", "comm.tp")] if size and job.readers < 1 else []


def pinner(job: Job) -> tuple[Op, ...]:
    """One batch in the thread that pins: it is taken over from its loader process, copied into pinned memory, and handed on."""
    return (
        Op("data/loaded", "wait", PINNER, event="data/ready", shift=0),
        host("data/pin", HostWork("pin", device_bytes(job)), lane=PINNER, cls=CLS),
        Op("data/pinned", "record", PINNER, event="data/pinned", shift=0),
    )


def loaders(job: Job) -> dict[str, tuple[Op, ...]]:
    """The segments of each loader process (one batch, and a delay before the first one), and of the thread that pins what they make.

    Worker w of W begins w/W of a batch late. Workers that start together would stay together: every W-th step would wait for all
    of a batch and the others for nothing. Spread evenly, each step waits for the mean, and three simulated steps show it.
    """
    data = job.plan.data
    found: dict[str, tuple[Op, ...]] = {}
    for worker in range(data.workers):
        lane = f"loader.{worker}"
        free = Op("data/free", "wait", lane, event="data/taken", shift=-data.prefetch * data.workers)
        if worker:
            found[f"{lane}.late"] = tuple(load(job, lane, worker / data.workers, data.workers))
        found[lane] = (free, *load(job, lane, processes=data.workers), Op("data/ready", "record", lane, event="data/ready", shift=0))
    return found | ({PINNER: pinner(job)} if data.workers and pins(job) else {})


def loader_calls(job: Job) -> dict[str, tuple[Call, ...]]:
    """The calls of each loader process, one for each batch that it makes, and of the thread that pins them, in order."""
    workers = job.plan.data.workers
    batches = list(enumerate((step, microbatch) for step, count in enumerate(job.counts) for microbatch in range(count)))
    found: dict[str, tuple[Call, ...]] = {}
    for worker in range(workers):
        lane = f"loader.{worker}"
        made = tuple(Call(lane, f"s{step}/mb{microbatch}", batch, step) for batch, (step, microbatch) in batches[worker::workers])
        late = (Call(f"{lane}.late", f"s0/late{worker}"),) if worker and made else ()
        found[lane] = late + made
    if workers and pins(job):
        found[PINNER] = tuple(Call(PINNER, f"s{step}/mb{microbatch}", batch, step) for batch, (step, microbatch) in batches)
    return found
