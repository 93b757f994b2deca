"""What the fitted model says between the points of a GPU's calibration: a table reads straight lines, a GPU climbs stairs.

Products of 1,600 columns leave as many SMs idle as those of 1,664, and attention over 25 heads as over 33: tiles and waves of blocks are in the model, and
not in what is read between two points that are full of them. So a work is priced as the table reads it, by the model's own seconds over what
the same table would read of the model's seconds at its points: at a point, exactly as measured.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.cost.calibration import Calibration, Sample
from sim.cost.kernel import kernel_cost
from sim.cost.points import attention_of, product_of
from sim.cost.timed import Prices
from sim.work import EXACT, Attention, Gemm, Work
from topologies.hardware import Gpu


class Stairs:
    """The model's seconds over a line between its own seconds at the calibration's points."""

    def __init__(self, calibration: Calibration, gpu: Gpu, efficiency: str) -> None:
        """`efficiency`: the attention kernels (`sim.cost.kernel`)."""
        self._calibration, self._gpu, self._efficiency = calibration, gpu, efficiency
        points = {
            "gemm": tuple(self._as_modelled(s, product_of(s)) for s in calibration.rows("gemm")),
            "attention": tuple(self._as_modelled(s, attention_of(s)) for s in calibration.rows("attention")),
        }
        self._lines = Prices(replace(calibration, tables=calibration.tables | points))

    def _as_modelled(self, sample: Sample, work: Work) -> Sample:
        return replace(sample, median=self._model(work))

    def _model(self, work: Work) -> float:
        return kernel_cost(work, self._gpu, self._efficiency, self._calibration.loaded).seconds

    def factor(self, work: Work) -> float:
        """1 for works of other kinds than products and attention, and for exact fp32: its kernels have other tiles than those that the model was fitted on."""
        if not isinstance(work, (Gemm, Attention)) or work.dtype in EXACT:
            return 1.0
        line, _ = self._lines.price(work)
        return self._model(work) / line if line > 0 else 1.0


_known: dict[tuple[int, int, str], Stairs] = {}
"""Each keeps its calibration and its GPU, so that their ids stay their own."""
_MOST = 16


def stairs_of(calibration: Calibration, gpu: Gpu, efficiency: str) -> Stairs:
    """Made once for a calibration and a GPU."""
    key = id(calibration), id(gpu), efficiency
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[key] = Stairs(calibration, gpu, efficiency)
    return found
