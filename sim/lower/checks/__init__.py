"""The laws that every program must keep, checked also by a run without time."""
