"""Published timings of collectives against the cost model."""
