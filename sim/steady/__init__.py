"""What a step takes once steps are alike: how many steps, micro-batches and ops are simulated for that, and what differs between steps."""
