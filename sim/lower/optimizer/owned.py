"""The tensors that one rank updates, and the state that the optimizer keeps of them."""

from __future__ import annotations

import heapq
from collections import Counter
from functools import cached_property

from sim.framework.chosen import sharding_of, zero_of
from sim.framework.framework import Framework
from sim.lower.job import Job
from sim.lower.template import BlockOps
from sim.model.parts import Part
from sim.optimizers import OPTIMIZERS
from sim.plan import Plan
from sim.work import BYTES

Matrix = tuple[int, int]
"""(rows, columns) of a parameter."""


def state_width(job: Job) -> float:
    """Bytes of one element of the optimizer's state and of the parameters that it updates (fp32 master copies, if there are any)."""
    return 4.0 if job.framework.precision.master else job.param_bytes


def state_dtype(job: Job) -> str:
    """The dtype of the optimizer's state and of the parameters that it updates."""
    return "fp32" if state_width(job) == 4 else job.framework.precision.param_dtype


def moment_width(plan: Plan, width: float) -> float:
    """Bytes of one element of the optimizer's moments. `width`: bytes of an element of the parameters that it updates.

    Scales of 8-bit moments are left out: one fp32 number for a tensor (TransformerEngine's FusedAdam), or for 256 elements
    (Dettmers et al. 2022).
    """
    return BYTES[plan.optimizer.states] if plan.optimizer.states else width


def reads_narrow(plan: Plan, framework: Framework, zero: int) -> bool:
    """Whether the update is Megatron's precision-aware optimizer on bf16 parameters: TransformerEngine's FusedAdam reads gradients in
    their own dtype (use_decoupled_grad), and keeps of each fp32 parameter only the 16 bits that the bf16 one lacks
    (store_param_remainders). It is not with Megatron-FSDP, which keeps whole fp32 weights."""
    narrow = framework.precision.master and framework.precision.param_dtype == "bf16"
    return plan.optimizer.states is not None and framework.linears.accumulates and narrow and zero < 3


def widens(plan: Plan, framework: Framework, zero: int) -> bool:
    """Whether gradients are cast to fp32 before the update. They are not with Megatron-FSDP, whose optimizer reads its own buffers
    (_copy_model_grads_to_main_grads returns there), nor where the host updates, which casts them itself."""
    narrow = BYTES[framework.precision.grad_dtype] < 4 and framework.precision.master and zero < 3
    return framework.optimizer.widens and narrow and not plan.host_updates and not reads_narrow(plan, framework, zero)


def flat_bytes(plan: Plan, framework: Framework) -> float:
    """Bytes for each element in flat tensors that an optimizer step makes. DeepSpeed without ZeRO casts all gradients to fp32 and then
    joins them (runtime/fp16/fused_optimizer.py, step); its ZeRO-1 does the same on one rank as on several."""
    flat = framework.optimizer.flat_step if zero_of(plan, framework) or not framework.optimizer.flat_step else 8.0
    return flat + 4.0 * widens(plan, framework, sharding_of(plan, framework)[0])


def shard_width(framework: Framework, zero: int) -> float:
    """Bytes of one parameter as a rank of ZeRO-3 keeps it for gathering. Where there is no other copy, that is the optimizer's fp32
    one."""
    alone = framework.precision.master and framework.data_parallel.one_copy(zero)
    return 4.0 if alone else BYTES[framework.precision.param_dtype]


def copy_width(plan: Plan, framework: Framework, zero: int) -> float:
    """Bytes for each element of the fp32 copy that an optimizer keeps beside the parameters that forward reads. 0 where autocast makes
    these anew, or the fp32 copy is all that a rank keeps. 2 where the update reads 16-bit parameters and keeps only the bits that they
    lack (`reads_narrow`)."""
    precision = framework.precision
    if not precision.master or precision.autocast or framework.data_parallel.one_copy(zero):
        return 0.0
    return 4.0 - (BYTES[precision.param_dtype] if reads_narrow(plan, framework, zero) else 0.0)


def states(name: str, elements: int, in_matrices: int, factored: tuple[int, int] = (0, 0)) -> int:
    """Elements of all state tensors that optimizer `name` keeps for `elements` parameters. For the `in_matrices` of these, Muon keeps
    only the momentum; for matrices Adafactor keeps a row and a column (`factored`, as of `Part.factored`)."""
    if name == "adafactor":
        return elements - factored[0] + factored[1]
    return OPTIMIZERS[name].states * elements - (in_matrices if name == "muon" else 0)


class Share:
    """The tensors that this rank updates."""

    def __init__(
        self, job: Job, blocks: list[BlockOps], small: bool = False, sorts: tuple[bool, ...] = (False, True), split: bool = True
    ) -> None:
        """`small`: without the matrices. `sorts`: which parameters count: dense ones (False), experts' (True), or both. `split`: of
        parameters that ranks share out, only this rank's part counts."""
        self._job, self._blocks, self._small, self._sorts, self._split = job, blocks, small, sorts, split

    @cached_property
    def _all(self) -> list[tuple[Part, int]]:
        """The trained parts of each kind of block, with how many blocks there are of it."""
        equal = Counter(id(block.block) for block in self._blocks)
        kinds = {id(block.block): block.block for block in self._blocks}
        return [(part, equal[at]) for at, block in kinds.items() for part in block.parts if not part.frozen and part.expert in self._sorts]

    def of(self, expert: bool) -> Share:
        """The same share with only the experts' parameters (True) or only the dense ones (False)."""
        return Share(self._job, self._blocks, self._small, (expert,))

    def _ways(self, part: Part) -> int:
        """Ranks that share the part's update."""
        return self._job.shards(part) if self._job.zero and self._split else 1

    @cached_property
    def own(self) -> tuple[int, int]:
        """Elements of parameters that backward updates itself, and fp32 numbers of their state."""
        kinds = (part for block in self._blocks for part in block.block.parts if part.own_state is not None and part.expert in self._sorts)
        found = [(part.params, part.own_state or 0) for part in kinds]
        return sum(params for params, _ in found), sum(state for _, state in found)

    @cached_property
    def sizes(self) -> Counter[int]:
        """How many tensors there are of each size (elements)."""
        found: Counter[int] = Counter()
        for part, count in self._all:
            ways = self._ways(part)
            tensors = Counter(part.tensors) - Counter(a * b for a, b in part.matrices) if self._small else Counter(part.tensors)
            for elements, times in tensors.items():
                found[-(-elements // ways)] += times * count
        return found

    @property
    def unsplit(self) -> Share:
        """The same tensors whole, with the parts that other ranks update."""
        return Share(self._job, self._blocks, self._small, self._sorts, split=False)

    @property
    def rest(self) -> Share:
        """The same share without the matrices."""
        return Share(self._job, self._blocks, True, self._sorts)

    @cached_property
    def matrices(self) -> Counter[Matrix]:
        """The matrices that a rank works on whole (Muon): those of the rank with the most work, for which all others wait."""
        piles: dict[int, Counter[Matrix]] = {}
        for part, count in self._all:
            pile = piles.setdefault(self._ways(part), Counter())
            for matrix in part.matrices:
                pile[matrix] += count
        return sum((heaviest(pile, ways) for ways, pile in piles.items()), Counter())

    @cached_property
    def pieces(self) -> dict[str, int]:
        """Mesh axis over which matrices are split (ZeRO-2, -3) -> elements of this rank's pieces of them. With one rank on the axis the
        pieces are whole matrices."""
        found: dict[str, int] = {}
        for part, count in self._all:
            if part.matrices:
                axis = self._job.mesh.shard_axis(part.expert)
                found[axis] = found.get(axis, 0) + -(-part.in_matrices * count // self._ways(part))
        return found

    @cached_property
    def whole(self) -> int:
        """Elements of all parameters on this rank that have gradients, before ZeRO shares them out."""
        return sum(part.params * count for part, count in self._all)

    @cached_property
    def elements(self) -> int:
        """Elements of all tensors that this rank updates."""
        return sum(size * count for size, count in self.sizes.items())

    @cached_property
    def states(self) -> int:
        """Elements of the optimizer's state for all tensors that this rank updates."""
        in_matrices = sum(part.in_matrices * count // self._ways(part) for part, count in self._all)
        factored = [sum(part.factored[at] * count for part, count in self._all) for at in (0, 1)]
        return states(self._job.plan.optimizer.name, self.elements, in_matrices, (factored[0], factored[1]))

    @cached_property
    def shapes(self) -> Counter[Matrix]:
        """How many matrices and tables there are of each shape. Holds only where this rank has whole ones."""
        found: Counter[Matrix] = Counter()
        for part, count in self._all:
            for shape in (*part.matrices, *part.tables):
                found[shape] += count
        return found

    @cached_property
    def vectors(self) -> Counter[int]:
        """How many tensors that are neither matrix nor table there are of each size (elements)."""
        areas: Counter[int] = Counter()
        for (rows, columns), count in self.shapes.items():
            areas[rows * columns] += count
        return self.sizes - areas

    @property
    def tensors(self) -> int:
        return self.sizes.total()

    @property
    def handed(self) -> int:
        """Number of tensors that the optimizer gets. A flat buffer may be shared out by position: then these are the tensors that reach
        into this rank's range, hardly more than its share of all (Megatron's distrib_optimizer.py, _build_model_gbuf_range_map). Else
        it gets a piece of each tensor, as with FSDP2."""
        if not (self._job.flat_gradients and self._job.zero in (1, 2) and self._job.framework.data_parallel.zero1 == "shards"):
            return self.tensors
        runs: dict[int, int] = {}
        for part, count in self._all:
            runs[self._ways(part)] = runs.get(self._ways(part), 0) + len(part.tensors) * count
        return sum(min(count, -(-count // ways) + 1) for ways, count in runs.items())


def cost(matrix: Matrix) -> float:
    """Multiply-adds of orthogonalizing the matrix (`sim.lower.optimizer.muon`), to compare matrices."""
    short, long = sorted(matrix)
    return 2.0 * short * short * long + float(short) ** 3


def heaviest(pile: Counter[Matrix], ways: int) -> Counter[Matrix]:
    """Deals whole matrices out to `ways` ranks, the costliest first, each to the rank with the least work so far. Returns the matrices
    of the rank with the most work."""
    if ways == 1:
        return pile
    owners = [(0.0, rank) for rank in range(ways)]
    held: list[Counter[Matrix]] = [Counter() for _ in owners]
    for matrix in sorted(pile.elements(), key=cost, reverse=True):
        load, rank = heapq.heappop(owners)
        held[rank][matrix] += 1
        heapq.heappush(owners, (load + cost(matrix), rank))
    return held[max(owners)[1]]
