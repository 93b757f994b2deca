"""Adafactor (Shazeer and Stern 2018) as torch has it: of a matrix's second moments a row and a column are kept.

The kernels are those of torch/optim/_adafactor.py (torch 2.13), list by list or tensor by tensor. The norms of each parameter and of each update
are read by the host (`.item()`), which scales the learning rate by them: two points a tensor at which it waits for the device. Means of rows
and columns are lists' own kernels; estimates are products of a column by a row, divided by numbers of other shapes than theirs, which lists'
kernels do not take. It takes whole matrices: those that ranks share out are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sim.lower.job import Job
from sim.lower.ops import compute, read_back
from sim.lower.optimizer.lists import over_lists
from sim.lower.optimizer.owned import Matrix, Share, state_dtype, state_width
from sim.lower.optimizer.passes import over_one
from sim.model.parts import Part
from sim.optimizers import Passes
from sim.program import Op
from sim.work import Gemm, MemoryBound, Work

CLS = "optimizer"
MEANS = 3
"""Kernels that make a mean of squares from a norm and join it to the running one: square, quotient, lerp."""
_SQUARES: Passes = (("scale", 1, 1), ("add", 2, 1), ("copy", 1, 1))
"""For a vector: its square, lerp, and the copy that becomes the update."""
_UPDATE: Passes = (("scale", 1, 1), ("sqrt", 1, 1), ("scale", 2, 1))
"""clamp, rsqrt, times the gradient."""


def factored_step(job: Job, share: Share) -> list[Op]:
    """The update of all tensors: first the matrices, then the rest, as torch groups them. A for-loop has another order but the same
    kernels."""
    shapes, vectors = list(share.shapes.elements()), list(share.vectors.elements())
    estimates = [work for shape in shapes for work in _estimate(job, shape)]
    ops: list[Op] = []
    if shapes:
        ops += _group(job, "optimizer/matrices", [*estimates, *_means(job, len(shapes))], [a * b for a, b in shapes], _UPDATE)
    if vectors:
        ops += _group(job, "optimizer/vectors", [], vectors, (*_SQUARES, *_UPDATE))
    return ops


def _group(job: Job, name: str, estimates: list[Work], tensors: list[int], passes: Passes) -> list[Op]:
    """The update of tensors of one kind: norms of the parameters, estimates and updates, norms of the updates, then the new parameters."""
    last: Passes = (("scale", 1, 1), ("add", 2, 1)) if _listed(job) else (("add", 2, 1),)
    return [
        *_norms(job, f"{name}.parameters", tensors),
        compute(job, f"{name}.estimate", (*estimates, *_passed(job, tensors, passes)), CLS),
        *_norms(job, f"{name}.updates", tensors),
        compute(job, f"{name}.step", tuple(_passed(job, tensors, last)), CLS),
    ]


def _norms(job: Job, name: str, tensors: list[int]) -> list[Op]:
    """The norm of each tensor (`tensors`: elements of each), and the host's read of it."""
    width, dtype = state_width(job), state_dtype(job)
    ops: list[Op] = []
    for at, size in enumerate(tensors):
        ops.append(compute(job, f"{name}.norm{at}", (MemoryBound("norm", int(size * width), 0, dtype, float(size)),), CLS))
        ops += read_back(job, f"{name}.read{at}", CLS)
    return ops


def _estimate(job: Job, shape: Matrix) -> list[Work]:
    """The kernels for a matrix's second moments: norms of the gradient's rows and columns, the product of the factors, the mean of the
    rows, and the quotient."""
    (rows, columns), width, dtype = shape, state_width(job), state_dtype(job)
    size = rows * columns
    return [
        MemoryBound("norm", int(size * width), int(rows * width), dtype, float(size)),
        MemoryBound("norm", int(size * width), int(columns * width), dtype, float(size)),
        Gemm(rows, columns, 1, dtype),
        MemoryBound("reduce", int(rows * width), int(width), dtype, float(rows)),
        *over_one(size, (("scale", 1, 1),), width, dtype),
    ]


def _means(job: Job, tensors: int) -> list[Work]:
    """The small kernels for means over rows and columns, and for the least value of the rows' means. Lists take one kernel each, a loop
    one for each of `tensors`."""
    count = 2 * MEANS + 1 if _listed(job) or job.device == "cpu" else (2 * MEANS + 1) * tensors
    return [MemoryBound("scale", 8, 8, state_dtype(job), 1.0, count)]


def _passed(job: Job, tensors: list[int], passes: Passes) -> list[Work]:
    """The kernels of `passes` over tensors with so many elements each. A list takes one kernel for each pass; a copy has no list kernel
    and is called for each tensor."""
    width, dtype = state_width(job), state_dtype(job)
    if not _listed(job):
        return [work for size in tensors for work in over_one(size, passes, width, dtype)]
    found: list[Work] = []
    for what, r, w in passes:
        if what == "copy":
            found += [work for size in tensors for work in over_one(size, ((what, r, w),), width, dtype)]
        else:
            found.append(over_lists(job, Counter(tensors), what, r * width, w * width, dtype, r + (what == "scale")))
    return found


def _listed(job: Job) -> bool:
    return job.framework.optimizer.implementation == "foreach" and job.device != "cpu"


def unknown(parts: Iterable[Part]) -> str:
    """Name of the first part that may have a tensor of two or more dimensions without a described shape; "" if there is none. Besides
    linears and tables, parts may have norms, and biases that are no longer than the longest side of a matrix."""
    trained = [part for part in parts if part.tensors and not part.frozen]
    longest = max((side for part in trained for shape in (*part.matrices, *part.tables) for side in shape), default=0)
    return next((part.name for part in trained if part.cls != "norm" and not _described(part, longest)), "")


def _described(part: Part, longest: int) -> bool:
    shapes = (*part.matrices, *part.tables)
    if part.cls not in ("gemm", "moe", "embedding") or (part.cls == "embedding" and not shapes):
        return False
    rest = Counter(part.tensors)
    rest.subtract(rows * columns for rows, columns in shapes)
    return all(count >= 0 and (count == 0 or size <= longest) for size, count in rest.items())
