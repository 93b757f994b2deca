"""The published form of a plan as `plan show --json` prints it, and `predict --json` under `plan`: the file's form."""

from __future__ import annotations

from sim import plan, sections


class Comm(sections.Comm, frozen=True, kw_only=True):
    """How gradients travel, with units."""

    bucket: str | None = None  # type: ignore[assignment]
    """Gradient bucket: a size with its unit; null: as the framework cuts them."""


class Data(sections.Data, frozen=True, kw_only=True):
    """The input path of each rank, with units."""

    sample: str = "0 B"  # type: ignore[assignment]
    """Read per sample: a size with its unit."""
    preprocess: str = "0 s"  # type: ignore[assignment]
    """CPU time per sample on one core: a time with its unit."""


class PlanFile(plan.Plan, frozen=True, kw_only=True):
    """A plan with every key; sizes and times carry units, and what the framework or the model decides is null."""

    comm: Comm = Comm()
    data: Data = Data()
