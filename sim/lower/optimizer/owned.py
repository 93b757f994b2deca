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
    """Bytes of one element of the optimizer's state and of what it updates."""
    return 4.0 if job.framework.precision.master else job.param_bytes


def state_dtype(job: Job) -> str:
    """The dtype of the optimizer's state and of what it updates."""
    return "fp32" if state_width(job) == 4 else job.framework.precision.param_dtype


def moment_width(plan: Plan, width: float) -> float:
    """Bytes of one element of the optimizer's moments, where an element of what it updates has `width`.

    8 bits have scales beside them: one fp32 number for a tensor (TransformerEngine's FusedAdam), or for 256 elements (Dettmers et al. 2022), which
    is left out.
    """
    return BYTES[plan.optimizer.states] if plan.optimizer.states else width


def reads_narrow(plan: Plan, framework: Framework, zero: int) -> bool:
    """Megatron's precision-aware optimizer on bf16 parameters: TransformerEngine's FusedAdam reads gradients as they are (use_decoupled_grad), and
    keeps of the fp32 parameters the 16 bits that the bf16 ones have not (store_param_remainders). Megatron-FSDP's fp32 weights lie apart."""
    narrow = framework.precision.master and framework.precision.param_dtype == "bf16"
    return plan.optimizer.states is not None and framework.linears.accumulates and narrow and zero < 3


def widens(plan: Plan, framework: Framework, zero: int) -> bool:
    """Are fp32 gradients made of narrower ones before the update? Megatron-FSDP's optimizer has its own buffers' (the same function returns), and
    what the host updates is widened there."""
    narrow = BYTES[framework.precision.grad_dtype] < 4 and framework.precision.master and zero < 3
    return framework.optimizer.widens and narrow and not plan.host_updates and not reads_narrow(plan, framework, zero)


def flat_bytes(plan: Plan, framework: Framework) -> float:
    """Bytes of an element that a step makes in flat tensors. Who turns ZeRO off in DeepSpeed has all gradients cast to fp32, and these joined then
    (runtime/fp16/fused_optimizer.py, step); its ZeRO-1 works as ever where nobody shares."""
    flat = framework.optimizer.flat_step if zero_of(plan, framework) or not framework.optimizer.flat_step else 8.0
    return flat + 4.0 * widens(plan, framework, sharding_of(plan, framework)[0])


def shard_width(framework: Framework, zero: int) -> float:
    """Bytes of a parameter as a rank of ZeRO-3 keeps it to be gathered: the optimizer's fp32 copy, where it has no other."""
    alone = framework.precision.master and framework.data_parallel.one_copy(zero)
    return 4.0 if alone else BYTES[framework.precision.param_dtype]


def copy_width(plan: Plan, framework: Framework, zero: int) -> float:
    """Bytes an element of the fp32 copy of the parameters that an optimizer keeps beside those that forward reads: none where autocast makes these
    anew, or the copy is all that a rank keeps; what 16 bits lack of it where the update reads them (`reads_narrow`)."""
    precision = framework.precision
    if not precision.master or precision.autocast or framework.data_parallel.one_copy(zero):
        return 0.0
    return 4.0 - (BYTES[precision.param_dtype] if reads_narrow(plan, framework, zero) else 0.0)


def states(name: str, elements: int, in_matrices: int, factored: tuple[int, int] = (0, 0)) -> int:
    """Elements of all state tensors that optimizer `name` keeps of so many parameters: of those in matrices Muon keeps the momentum alone,
    Adafactor a row and a column (`Part.factored`)."""
    if name == "adafactor":
        return elements - factored[0] + factored[1]
    return OPTIMIZERS[name].states * elements - (in_matrices if name == "muon" else 0)


class Share:
    """The tensors that this rank updates."""

    def __init__(
        self, job: Job, blocks: list[BlockOps], small: bool = False, sorts: tuple[bool, ...] = (False, True), split: bool = True
    ) -> None:
        """`small`: without the matrices. `sorts`: dense parameters (False), experts' (True), both. `split`: of what ranks share out, this one's."""
        self._job, self._blocks, self._small, self._sorts, self._split = job, blocks, small, sorts, split

    @cached_property
    def _all(self) -> list[tuple[Part, int]]:
        """The trained parts of each kind of block, with how many blocks there are of it."""
        equal = Counter(id(block.block) for block in self._blocks)
        kinds = {id(block.block): block.block for block in self._blocks}
        return [(part, equal[at]) for at, block in kinds.items() for part in block.parts if not part.frozen and part.expert in self._sorts]

    def of(self, expert: bool) -> Share:
        """Of these, the experts' or the dense ones."""
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
        """With what other ranks update."""
        return Share(self._job, self._blocks, self._small, self._sorts, split=False)

    @property
    def rest(self) -> Share:
        """Of these, what is no matrix."""
        return Share(self._job, self._blocks, True, self._sorts)

    @cached_property
    def matrices(self) -> Counter[Matrix]:
        """The matrices that this rank works on whole, where it works on whole ones: those of the rank with the most work, for which all wait."""
        piles: dict[int, Counter[Matrix]] = {}
        for part, count in self._all:
            pile = piles.setdefault(self._ways(part), Counter())
            for matrix in part.matrices:
                pile[matrix] += count
        return sum((heaviest(pile, ways) for ways, pile in piles.items()), Counter())

    @cached_property
    def pieces(self) -> dict[str, int]:
        """Elements of this rank's pieces of matrices, by the mesh axis over which these are split (ZeRO-2, -3): whole ones where it has one rank."""
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
        """Elements of them all."""
        return sum(size * count for size, count in self.sizes.items())

    @cached_property
    def states(self) -> int:
        """Elements of the optimizer's state of them all."""
        in_matrices = sum(part.in_matrices * count // self._ways(part) for part, count in self._all)
        factored = [sum(part.factored[at] * count for part, count in self._all) for at in (0, 1)]
        return states(self._job.plan.optimizer.name, self.elements, in_matrices, (factored[0], factored[1]))

    @cached_property
    def shapes(self) -> Counter[Matrix]:
        """All matrices and tables, where this rank has whole ones."""
        found: Counter[Matrix] = Counter()
        for part, count in self._all:
            for shape in (*part.matrices, *part.tables):
                found[shape] += count
        return found

    @cached_property
    def vectors(self) -> Counter[int]:
        """How many tensors there are of each size that are neither."""
        areas: Counter[int] = Counter()
        for (rows, columns), count in self.shapes.items():
            areas[rows * columns] += count
        return self.sizes - areas

    @property
    def tensors(self) -> int:
        return self.sizes.total()

    @property
    def handed(self) -> int:
        """Tensors that the optimizer is handed: of a flat buffer that is shared out by position, those that reach into this rank's range of it, hardly
        more than its share of all (Megatron's distrib_optimizer.py, _build_model_gbuf_range_map); else a piece of each, as of FSDP2."""
        if not (self._job.flat_gradients and self._job.zero in (1, 2) and self._job.framework.data_parallel.zero1 == "shards"):
            return self.tensors
        runs: dict[int, int] = {}
        for part, count in self._all:
            runs[self._ways(part)] = runs.get(self._ways(part), 0) + len(part.tensors) * count
        return sum(min(count, -(-count // ways) + 1) for ways, count in runs.items())


def cost(matrix: Matrix) -> float:
    """Of orthogonalizing it, in products' multiply-adds (`sim.lower.optimizer.muon`)."""
    short, long = sorted(matrix)
    return 2.0 * short * short * long + float(short) ** 3


def heaviest(pile: Counter[Matrix], ways: int) -> Counter[Matrix]:
    """Whole matrices dealt out to `ways` ranks, the costliest first, each to who has least by then: what the rank with most has."""
    if ways == 1:
        return pile
    owners = [(0.0, rank) for rank in range(ways)]
    held: list[Counter[Matrix]] = [Counter() for _ in owners]
    for matrix in sorted(pile.elements(), key=cost, reverse=True):
        load, rank = heapq.heappop(owners)
        held[rank][matrix] += 1
        heapq.heappush(owners, (load + cost(matrix), rank))
    return held[max(owners)[1]]
