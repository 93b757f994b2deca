"""Programs from and for other simulators: MLCommons Chakra execution traces."""
