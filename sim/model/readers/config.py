"""A Hugging Face config as a mapping that explains itself: each field is read with its type, its default and its place."""

from __future__ import annotations

from typing import Any

from topologies.errors import BadInput, Refused, UnknownName

ACTIVATIONS = {
    "silu": "swiglu", "swish": "swiglu", "swiglu": "swiglu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu", "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu", "quick_gelu": "quick_gelu", "relu": "relu", "relu2": "relu2", "tanh": "tanh",
}  # fmt: skip
"""transformers' names of activations; the gated form of silu is ours."""
_GATED = {"swiglu": "swiglu", "gelu": "geglu", "gelu_new": "geglu", "relu": "reglu"}


class Config:
    """A config's keys, with errors that name the file and the key."""

    def __init__(self, tree: dict[str, Any], where: str) -> None:
        self.tree, self.where = tree, where

    @property
    def kind(self) -> str:
        return str(self.tree.get("model_type"))

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is given (null counts as absent). Raises `BadInput` naming the first when none is."""
        for key in keys:
            value = self.tree.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadInput(f"{self.where}: {key} = {value!r} must be a whole number")
            return value
        if default is None:
            raise BadInput(f"{self.where}: '{keys[0]}' is missing for model_type '{self.kind}'. Add it, e.g. \"{keys[0]}\": 32")
        return default

    def fraction(self, *keys: str, default: float) -> float:
        """The first of `keys` that is given, as a float. Raises `BadInput` where it is no number."""
        for key in keys:
            value = self.tree.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise BadInput(f"{self.where}: {key} = {value!r} must be a number")
            return float(value)
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        """A switch; null counts as absent. Raises `BadInput` where it is neither true nor false."""
        value = self.tree.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadInput(f"{self.where}: {key} = {value!r} must be true or false")
        return value

    def inner(self, key: str) -> Config:
        """A table inside the config (`attn_config`); empty where absent. Raises `BadInput` where it is no table."""
        value = self.tree.get(key) or {}
        if not isinstance(value, dict):
            raise BadInput(f"{self.where}: {key} must be a table of fields, not {type(value).__name__}")
        return Config({"model_type": self.kind, **value}, f"{self.where}: {key}")

    def activation(self, *keys: str, gated: bool, default: str = "silu") -> str:
        """Our name of the activation function, of the gated kind where the MLP is `gated`. Raises `UnknownName`."""
        name = next((self.tree[key] for key in keys if self.tree.get(key)), default)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise UnknownName("activation", str(name), ACTIVATIONS, self.where)
        plain = ACTIVATIONS[name]
        if gated:
            return _GATED.get(plain, "swiglu")
        return "silu" if plain == "swiglu" else plain


def windows(c: Config, layers: int, every: int = 0) -> dict[str, Any]:
    """Which layers see a window, from `layer_types`; where the file does not say, each of them but every `every`-th.

    Raises `Refused` where windows follow no rhythm that a spec can say.
    """
    kinds = c.tree.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        return {"window_every": 1, "full_every": every}
    seen = [str(kind) in ("sliding_attention", "chunked_attention") for kind in kinds]
    if not any(seen):
        return {"window": 0}
    for full in (0, *range(2, layers + 1)):
        for step in (1, *range(2, layers)):
            if seen == [i % step == 0 and not (full and i % full == full - 1) for i in range(layers)]:
                return {"window_every": step, "full_every": full}
    raise Refused(
        f"{c.where}: layer_types follows no repeating pattern that is supported (every n-th layer windowed, or every n-th seeing all keys). "
        "Write it as one, e.g. three sliding_attention and one full_attention again and again"
    )


def sizes(c: Config) -> dict[str, Any]:
    """Layers, widths and vocabulary under the names that makers give them."""
    heads = c.number("num_attention_heads", "n_head", "n_heads", "num_heads")
    return {
        "layers": c.number("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": c.number("hidden_size", "n_embd", "d_model", "n_embed"),
        "heads": heads,
        "kv_heads": c.number("num_key_value_heads", default=heads),
        "head_dim": c.number("head_dim", default=0),
        "vocab": c.number("vocab_size", "padded_vocab_size"),
    }
