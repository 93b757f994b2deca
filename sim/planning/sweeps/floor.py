"""Plans that cannot fit, known from a few divisions: what a rank must hold of parameters, gradients and optimizer state at least.

The fullest rank holds no less than the mean over the ranks that share the model. ZeRO's stages divide one more of the three (Rajbhandari
et al. 2020, section 5). Activations come on top, so that what is above the device's memory here never fits.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.files.overrides import SHORT
from sim.framework.chosen import framework_of
from sim.framework.framework import Framework
from sim.lower.optimizer.owned import copy_width, moment_width, states
from sim.model import Shape, describe
from sim.plan import Plan
from sim.planning.sweeps.space import edits_of
from sim.setting.bind import model_of, usual_length
from sim.work import BYTES
from topologies.load import load_topology

_FIXED = (
    "model",
    "framework",
    "precision",
    "task",
    "memory.offload",
    "optimizer.name",
    "optimizer.states",
    "optimizer.on",
    "update.mode",
    "update.aggregate",
    "comm.reduce_dtype",
)
"""Keys whose values set the parameters or their bytes, as all of `model.` do: where the space varies one of them, the floor is not used."""


class Floor:
    """The floor of one base plan over a space of splits."""

    def __init__(self, base: Plan, space: Mapping[str, tuple[str, ...]], edits: tuple[str, ...] = ()) -> None:
        """`edits`: what-ifs on every machine."""
        varied = [SHORT.get(key, key) for key in space]
        self._usable = not any(key in _FIXED or key.startswith("model.") for key in varied)
        self._usable &= base.task == "train" and base.memory.offload == "none" and base.optimizer.on != "cpu" and not base.host_updates
        if not self._usable:
            return
        framework: Framework = framework_of(base)
        model = model_of(base)
        network = describe(model, Shape(micro=1, seq=base.seq_len or usual_length(model), precision=base.precision), framework)
        parts = [part for _, block in network.blocks for part in block.parts]
        self._usable &= all(part.own_state is None for part in parts)  # tables that backward updates have no dense gradients
        self._parameters = network.parameters
        width = 4.0 if framework.precision.master else BYTES[framework.precision.param_dtype]
        least = states(base.optimizer.name, 1, 1, (1, 0))  # of a parameter
        self._bytes = (
            BYTES[framework.precision.param_dtype],
            BYTES[framework.precision.grad_dtype],
            least * moment_width(base, width) + copy_width(base, framework, 0),
        )
        self._parallel, self._zero = base.parallel, framework.data_parallel.zero
        self._edits = edits
        self._memory: dict[tuple[str, tuple[str, ...]], int] = {}

    def over(self, at: Mapping[str, str], on: str) -> int:
        """Bytes that a rank must hold at least, if they are more than its device has; else 0. `at`: values by the space's keys. Raises `BadInput`
        for what the machine has not."""
        if not self._usable:
            return 0
        p, said = self._parallel, {SHORT.get(key, key): value for key, value in at.items()}

        def size(axis: str, unsaid: int) -> int:
            return int(said.get(f"parallel.{axis}", unsaid))

        try:
            tp, pp, ep, cp = size("tp", p.tp), size("pp", p.pp), size("ep", p.ep), size("cp", p.cp)
            zero = size("zero", self._zero if p.zero is None else p.zero)
            ranks = int(said["gpus"]) // (tp * pp) if "gpus" in said else size("dp_shard", p.dp_shard) * cp
            shards = said.get("parallel.dp_shard", "")
            ranks = min(ranks, int(shards) * cp) if shards.isdigit() else ranks
        except (ValueError, ZeroDivisionError):
            return 0
        if min(tp, pp, ep, cp) < 1:
            return 0  # the plan itself says what is wrong
        ways = max(1, ranks)
        weights, gradients, state = self._bytes  # ZeRO-3's shards are the master copy themselves: one copy is counted
        state -= min(state, 4.0) if zero >= 3 else 0.0
        each = weights / (ways if zero >= 3 else 1) + gradients / (ways if zero >= 2 else 1) + state / (ways if zero >= 1 else 1)
        need = int(self._parameters / (tp * pp * ep) * each)
        return need if need > self._device(on, edits_of(at)) else 0

    def _device(self, on: str, edits: tuple[str, ...]) -> int:
        """Bytes that any rank there may have at most: where devices differ, the fullest may be on the largest; one on a CPU host has all of its."""
        found = self._memory.get((on, edits))
        if found is None:
            topology = load_topology(on, (*self._edits, *edits))
            sizes = [device.memory for device, _ in topology.devices(topology.gpus)]
            if topology.kind == "cpu":
                sizes = [topology.host_memory(node) for node in range(topology.nodes)]
            found = self._memory[on, edits] = max(sizes) if all(sizes) else 1 << 62
        return found
