"""Corrects what is interpolated between the points of a GPU's calibration by the fitted model: a table gives smooth lines, a GPU's times have steps.

Products of 1,600 columns leave as many SMs idle as those of 1,664, and attention over 25 heads as over 33: the model knows tiles and waves of blocks,
but a line between two points whose waves are full does not show them. So the table's seconds are multiplied by a factor: the model's seconds of the
work, over those that the same table would give if its points held the model's seconds. At a measured point the factor is 1.
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
    """The model's seconds of a work, over those interpolated between the model's seconds at the calibration's points."""

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
        """Factor on the seconds that the calibration's table gives for `work`. 1 for works other than products and attention, and for exact dtypes: their
        kernels have other tiles than those that the model was fitted on."""
        if not isinstance(work, (Gemm, Attention)) or work.dtype in EXACT:
            return 1.0
        line, _ = self._lines.price(work)
        return self._model(work) / line if line > 0 else 1.0


_known: dict[tuple[int, int, str], Stairs] = {}
"""(id of the calibration, id of the GPU, attention kernels) -> `Stairs`, which holds both objects, so that no other object gets their ids."""
_MOST = 16


def stairs_of(calibration: Calibration, gpu: Gpu, efficiency: str) -> Stairs:
    """The `Stairs` of a calibration, a GPU and its attention kernels: made once, then kept."""
    key = id(calibration), id(gpu), efficiency
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[key] = Stairs(calibration, gpu, efficiency)
    return found
