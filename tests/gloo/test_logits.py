"""What stock training holds while backward runs."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from executor.training import trainer as stock


def test_logits_do_not_live_through_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name for them would: with a vocabulary of 50,000 that is a tenth of what GPT-2 takes, and no user's model needs them."""
    weight, made, alive = torch.ones(4, requires_grad=True), list[weakref.ref[torch.Tensor]](), list[bool]()
    weight.register_hook(lambda grad: alive.append(made[-1]() is not None))

    def model(x: torch.Tensor) -> torch.Tensor:
        made.append(weakref.ref(logits := x * weight))
        return logits

    monkeypatch.setattr(stock, "loss_of", lambda spec, output, target: output.sum())
    monkeypatch.setattr(stock, "reads_ids", lambda spec: True)
    one = SimpleNamespace(
        plan=SimpleNamespace(microbatches=2, parallel=SimpleNamespace(tp=1)), world=SimpleNamespace(device="cpu"), spec=None, model=model,
        mixed=SimpleNamespace(casts=nullcontext, scaled=lambda loss: loss), _without_sync=lambda last: nullcontext(),
        habits=SimpleNamespace(optimizer=SimpleNamespace(reads_losses=False)),
    )  # fmt: skip
    batch = torch.ones(4), torch.ones(4)
    stock.Trainer._accumulate(one, iter([batch, batch]))  # type: ignore[arg-type]
    assert alive == [False, False]
