"""The dtypes in which a plan keeps what it trains, in words: as the plan says, or else as its framework does."""

from __future__ import annotations

from sim.framework.chosen import sharding_of
from sim.framework.framework import Framework
from sim.lower.optimizer.owned import reads_narrow
from sim.model.parts import Network
from sim.optimizers import OPTIMIZERS
from sim.plan import Plan


def numbers(plan: Plan, framework: Framework, network: Network) -> str:
    """ "weights bf16 beside an fp32 copy, gradients fp32 sent as bf16, moments fp32": for the parameters that are trained. Frozen ones
    are named separately where they are kept otherwise: "frozen weights nf4"."""
    if plan.task == "forward":
        return f"weights {framework.precision.param_dtype}"
    frozen = _frozen(plan, network)
    found = [f"{'trained ' if frozen else ''}weights {_weights(plan, framework)}", f"gradients {_gradients(plan, framework)}"]
    if OPTIMIZERS[plan.optimizer.name].states:
        precision = framework.precision
        wide = precision.master or precision.autocast
        found.append(f"moments {plan.optimizer.states or ('fp32' if wide else precision.param_dtype)}")
    return ", ".join(found) + frozen


def _frozen(plan: Plan, network: Network) -> str:
    """The dtype of most frozen parameters, as the end of the text; "" if it is that of the trained ones."""
    kept: dict[str, int] = {}
    for _, block in network.blocks:
        for part in block.parts:
            if part.frozen:
                form = "" if not part.stored else "nf4" if part.stored < 1.0 else plan.precision
                kept[form] = kept.get(form, 0) + part.params
    most = max(kept, key=lambda one: kept[one], default="")
    return f"; frozen weights {most}" if most else ""


def _weights(plan: Plan, framework: Framework) -> str:
    precision, (zero, _) = framework.precision, sharding_of(plan, framework)
    if precision.autocast:
        return "fp32, cast for products"
    if not precision.master:
        return "fp32" if precision.param_dtype == "fp32" else f"{precision.param_dtype} without an fp32 copy"
    if framework.data_parallel.one_copy(zero) and (plan.parameters_offloaded or not plan.host_updates):
        return f"fp32, gathered as {precision.param_dtype}"
    copy = "the 16 bits that they lack of fp32" if reads_narrow(plan, framework, zero) else "an fp32 copy"
    return f"{precision.param_dtype} beside {copy}"


def _gradients(plan: Plan, framework: Framework) -> str:
    precision = framework.precision
    sent = plan.world > 1 and precision.reduce_dtype != precision.grad_dtype
    return precision.grad_dtype + (f" sent as {precision.reduce_dtype}" if sent else "")
