"""What every program must keep, shown by running it without time."""
