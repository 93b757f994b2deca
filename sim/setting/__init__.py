"""A plan bound to its model, its framework and a machine: checked, where its ranks sit alike, and priced."""
