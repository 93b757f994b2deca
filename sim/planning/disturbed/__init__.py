"""Steps on machines that are not whole or not a plan's alone: faults, and jobs beside each other."""
