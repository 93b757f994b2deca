"""Models: what they are (`spec`), their names and files (`load`), and their work on one rank (`network`)."""

from sim.model.load import load_model, models
from sim.model.network import describe
from sim.model.parts import Block, Network, Part, Shape
from sim.model.specs.spec import ModelSpec

__all__ = ["Block", "ModelSpec", "Network", "Part", "Shape", "describe", "load_model", "models"]
