"""How much longer a training step's host work takes than the same work in tight loops, as the other tables measure it.

An operator that is called again and again finds its code in the caches and its branches predicted. In a step, dozens of other operators,
modules and autograd nodes run between two calls of it: on one virtual machine with an H200, all launches of a layer took 1.2 to 1.8 times
the sum of their parts in loops, for layers of GPT and of Llama. So whole layers are timed too. Their size keeps the device busy, which on
that machine made calls half as long again (the reason is not known), but less than the host needs to launch them.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from executor.probes.bench import Bench
from executor.training.models.build import loss_of, model_for
from executor.training.optimizers import optimizer_of
from sim.cost.calibrated import LOOPED
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.step import lower
from sim.program import HOST, Program
from sim.setting.bind import model_of, network_of
from sim.work import HostWork

_GPT: dict[str, Any] = {"norm": "layernorm", "activation": "gelu", "bias": True, "position": "learned", "dropout": 0.0}
_MODELS: dict[str, dict[str, Any]] = {"probe-gpt": _GPT, "probe-llama": {}}
_DEPTHS = (6, 16)
"""Layers of the two models, whose difference leaves out the rest of a step. They are as deep as real models, whose modules and parameters
do not stay in a core's own caches from one step to the next."""
_ROUNDS, _STEPS, _WARM = 4, 6, 2
"""Rounds, in each of which every model trains `_STEPS` steps in a row; the first `_WARM` of them do not count."""


def in_step(bench: Bench) -> None:
    """The row `in_step` of the table of host work: a layer's host seconds in a step over the sum of its parts in loops, a value for each
    model."""
    bench.phase("host work in a step")
    apart = {sample.name: sample.median for kind, sample in bench.found if kind == "host" and sample.name in LOOPED}
    found = list[float]()
    steps = {(name, layers): _Training(bench, _plan(name, layers)) for name in _MODELS for layers in _DEPTHS}
    for _ in range(1 if bench.quick else _ROUNDS):
        for one in steps.values():
            one.run()
            bench.world.beat.touch()
    for name in _MODELS:
        few, many = (steps[name, layers] for layers in _DEPTHS)
        parts = sum(apart.get(what, 0.0) * (count - few.units[what]) for what, count in many.units.items())
        found.append((many.seconds - few.seconds) / parts)
    bench.add("host", "in_step", "", (), found)


def _plan(name: str, layers: int) -> dict[str, Any]:
    model = {"family": "decoder", "name": name, "layers": layers, "hidden": 768, "heads": 12, "vocab": 1024, **_MODELS[name]}
    return {"model": model, "seq_len": 512, "batch": {"micro": 4}}


class _Training:
    """Training steps of one model, as a user writes them."""

    def __init__(self, bench: Bench, tree: dict[str, Any]) -> None:
        plan = load_plan(tree)
        spec, habits, device = model_of(plan), framework_of(plan), bench.world.device
        self.units = units(lower(plan, network_of(plan, habits), habits, "cuda", 2))
        self._bench, self._times = bench, list[float]()
        with device:
            self._model = model_for(spec, habits, plan.seq_len or 1).to(torch.bfloat16)
        self._optimizer = optimizer_of(plan.optimizer.name, habits, self._model)
        shape = (plan.batch.micro, plan.seq_len or 1)
        self._ids, self._next = (torch.randint(0, spec.vocab, shape, device=device) for _ in range(2))  # type: ignore[union-attr]
        self._loss: Callable[[torch.Tensor], torch.Tensor] = lambda output: loss_of(spec, output, self._next)

    def run(self) -> None:
        """Trains `_STEPS` steps; each is timed until all of it is launched."""
        for number in range(_STEPS):
            self._bench.world.synchronize()
            start = time.perf_counter()
            self._loss(self._model(self._ids)).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._optimizer.zero_grad()
            if number >= _WARM:
                self._times.append(time.perf_counter() - start)

    @property
    def seconds(self) -> float:
        """Median host seconds of one step."""
        return statistics.median(self._times)


def units(program: Program) -> Counter[str]:
    """Kind -> number of units of host work in the program's last step. Each kernel counts as one `kernel`, and its repetitions as
    `launch`."""
    found = Counter[str]()
    for call, op in program.ops(0, HOST):
        for work in op.works if call.step == program.steps - 1 else ():
            if isinstance(work, HostWork):
                found[work.what] += work.count * work.repeat  # type: ignore[assignment]
            else:
                found["kernel"] += 1
                found["launch"] += work.repeat - 1
    return found
