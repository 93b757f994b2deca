"""From a step to a training run: days, money, failures, sizes of clusters."""
