"""What recommenders are: DLRM, and DLRM with a cross network. Sizes are counts of elements."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from sim.model.specs.fields import Count, Natural, Spec
from topologies.errors import BadInput

Tables = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=4096)]
Widths = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=32)]


class Dlrm(Spec, tag="dlrm", frozen=True, kw_only=True):
    """Tables of embeddings, an MLP for numbers, products of all pairs or a cross network, an MLP on top (Naumov et al. 2019; DCN-V2: Wang et al.
    2020). One sample is one impression."""

    unit: ClassVar[str] = "samples"
    chain: ClassVar[bool] = False
    """The pairs are of what the tables and the first MLP give."""
    tables: Tables
    """Rows of each."""
    dim: Count
    """Columns of all of them."""
    hot: tuple[Count, ...] = ()
    """Rows of each table that a sample looks up and adds; default: one."""
    table_optimizer: Literal["sgd", "adagrad", "rowwise-adagrad"] = "sgd"
    """What updates the tables inside backward; adagrad keeps a number for each of theirs, rowwise one for each row."""
    dense: Count = 13
    """Numbers of a sample."""
    bottom: Widths
    """Widths of the MLP that takes them; the last is `dim`."""
    cross: Natural = 0
    """Layers of a low-rank cross network over what the tables and the first MLP give; 0: products of all pairs."""
    rank: Count = 512
    """Of the cross network's matrices."""
    top: Widths
    """Widths of the MLP on the pairs, or on what the cross network gives; the last is 1."""

    def __post_init__(self) -> None:
        name = self.name or "dlrm"
        if self.hot and len(self.hot) != len(self.tables):
            raise BadInput(f"{name}: hot has {len(self.hot)} numbers for {len(self.tables)} tables; give one for each, or none")
        if self.bottom[-1] != self.dim:
            raise BadInput(f"{name}: bottom ends with {self.bottom[-1]}, but its products with the tables need dim = {self.dim}")
        if self.top[-1] != 1:
            raise BadInput(f"{name}: top ends with {self.top[-1]}; a click is one number, so end it with 1")

    @property
    def lookups(self) -> tuple[int, ...]:
        """Rows of each table that a sample looks up."""
        return self.hot or (1,) * len(self.tables)

    @property
    def pairs(self) -> int:
        """Products of two different vectors: of each table, and of the first MLP."""
        return self.vectors * (self.vectors - 1) // 2

    @property
    def vectors(self) -> int:
        """Of each table, and of the first MLP."""
        return len(self.tables) + 1

    @property
    def untouched(self) -> int:
        """Parameters that one sample does not pass through."""
        return sum(max(0, rows - hot) for rows, hot in zip(self.tables, self.lookups, strict=True)) * self.dim

    def input_bytes(self, seq: int) -> int:
        """fp32 numbers and label, int64 ids."""
        return 4 * (self.dense + 1) + 8 * sum(self.lookups)
