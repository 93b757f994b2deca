"""What a cell of a table says: nothing, a number however printed, or a word.

Tables print "1,024", "8k", "4M", "8.03B", "80 GB", "8x8" and "n/a" where others print bare numbers.
"""

from __future__ import annotations

import math
import re

_NOTHING = frozenset(("", "nan", "null", "<na>", "#n/a", "-", "--", "–", "—", "?"))
"""What a program or a person leaves in a cell that holds nothing, of numbers and words alike."""
_UNKNOWN = _NOTHING | {"n/a", "na", "none", "unknown", "not stated", "not given", "not reported", "auto", "default", "varies", "tbd"}
"""What tables print in a cell of a number that they do not know, beside nothing."""
_SPARE = frozenset(("params", "gpu_mem_gb", "peak_mem_gb", "date", "etp", "fsdp_size"))
"""Numbers that a prediction can do without: what cannot be read is not known."""
_ABSENT = frozenset(
    (
        "n_experts",
        "top_k",
        "ffn_hidden",
        "moe_ffn_hidden",
        "n_kv_heads",
        "tp",
        "pp",
        "vp",
        "cp",
        "ep",
        "etp",
        "fsdp_size",
        "grad_accum",
        "peak_mem_gb",
    )
)
"""Numbers whose 0 says that a row has no such thing."""
_EACH = frozenset(("micro_batch", "gpus_per_node"))
"""Numbers of each GPU, or of each node, whether the cell says so or not."""
_DENIED = frozenset(("no", "off", "false", "disabled"))
"""What says of a number that the row has no such thing: of degrees, chunks and accumulation that there is one."""
_OF_EXPERTS = frozenset(("n_experts", "top_k"))
"""Numbers beside which others may stand: "2 of 8", "64 routed + 2 shared"."""
_SINGLE = frozenset(("tp", "pp", "vp", "cp", "ep", "etp", "grad_accum"))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DECIMAL = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_BINARY = {"k": 1 << 10, "m": 1 << 20}
_OF_TWO = frozenset(("seq_len", "hidden", "ffn_hidden", "moe_ffn_hidden", "global_batch", "micro_batch", "gpus"))
"""Columns whose "8k" is 8192; of parameters and words in a vocabulary it is 8000."""
_ROUNDED = 0.03
"""Share by which a power of two may differ from its own thousands."""
_UNITS = (
    r"(?<=\d)\s*(gi?b|g|s|secs?|seconds|s/it|sec/(it|iter|step))$"
    r"|(?<=[\dkmb])[\s-]+(gpus?|nodes?|tok|tokens?|seqs?|sequences?|samples?|images?|imgs?|steps?|ways?|ranks?|stages?|layers?|experts?|heads?|groups?|micro-?batch(es)?)$"
)
_MODEL = r"[\s-]*(nvidia|amd|[ahbglv]\d|gb\d|rtx|tesla|mi\d)[\w\s-]*$"
"""A GPU's name behind their number."""


def word(text: str | None) -> str:
    """A cell of text, "" where it holds nothing."""
    plain = (text or "").strip()
    return "" if plain.lower() in _NOTHING else plain


def date(text: str) -> str:
    """Year and month, which compare in order, of a date however it is written ("06/2024", "June 2024", "Q2 2024"); a cell that begins with its year as
    it is, and "" where there is none."""
    if re.match(r"20\d\d(-|$)", text):
        return text
    found = re.search(r"(?:\b(\d\d?)[./-])?(20\d\d)(?:[./-](\d\d?)\b)?", text)
    if not found:
        return ""
    words = text.lower()
    named = next((place for place, month in enumerate(_MONTHS, start=1) if re.search(rf"\b{month}", words)), 0)
    quarter = re.search(r"\bq([1-4])\b", words)
    month = named or int(found[3] or found[1] or 0) or (3 * int(quarter[1]) if quarter else 0)
    return f"{found[2]}-{month:02}" if 1 <= month <= 12 else found[2]


def number(text: str, column: str, kind: type) -> int | float | None:
    """A positive, finite number; None where the cell says that there is none. Whole where `kind` is int. Raises ValueError."""
    plain = text.strip().lower()
    if plain in _UNKNOWN or (column in _ABSENT and plain in ("0", "0.0")) or (column == "gpus" and re.fullmatch(r"[\d,]+\s*nodes?", plain)):
        return None
    if re.sub(r"\s*\(.*", "", plain) in _DENIED and column in _ABSENT:
        return 1 if column in _SINGLE else None
    if column == "n_kv_heads" and re.fullmatch(r"m[hq]a|gqa|multi[- ](head|query)( attention)?|grouped[- ]query( attention)?", plain):
        return 1 if re.match(r"mqa|multi[- ]query", plain) else None
    try:
        value = _value(plain, column)
        if not math.isfinite(value) or value <= 0 or (kind is int and abs(value - round(value)) > 1e-6 * value):
            raise ValueError(text)
    except ValueError:
        if column in _SPARE:
            return None
        raise
    return round(value) if kind is int else value


def _value(plain: str, column: str) -> float:
    """Thousands parted by commas or not, a remark in parentheses, a unit, a product of nodes and GPUs, k, M or B behind."""
    plain = re.sub(r"\s*\([^()]*\)$", "", plain).removeprefix("~")
    plain = re.sub(r"^[a-z_ ]+[=:]\s*|^(e?[a-z]p|top|gqa)[\s-]?(?=\d)", "", plain)  # "TP=2", "TP2", "top-2", "GQA-8"
    if column in _OF_EXPERTS:
        plain = re.sub(r"(?<=\d)\s*(of|/)\s*\d+$|\s*\+\s*\d+ shared.*$", "", plain)
        plain = re.sub(r"(?<=\d)\s*routed( experts?)?$", "", plain)
    if column in _EACH:
        plain = re.sub(r"\s*(/|per)\s*(gpu|device|rank|node|server)$", "", plain)
    if thousandths := re.fullmatch(r"([\d.,]+)\s*(ms|msec|milliseconds)", plain):
        return float(thousandths[1].replace(",", "")) / 1000
    plain = re.sub(_UNITS, "", plain)
    plain = re.sub(r"(?<=\d)[,\u00a0\u202f ](?=\d{3}(?!\d))", "", plain)
    if column == "gpus":
        plain = re.sub(r"(?<=\d)\s*nodes?(?=\s*[x×*])", "", plain)
        plain = re.sub(r"(?<=\d)\s*[x×*]?" + _MODEL, "", plain)
        if product := re.fullmatch(r"(\d+)\s*[x×*]\s*(\d+)", plain):
            return float(product[1]) * float(product[2])
    if scaled := re.fullmatch(r"([\d.]+)\s*([kmbgt])", plain):
        return _count(float(scaled[1]), scaled[2], column in _OF_TWO)
    return float(plain)


def _count(size: float, letter: str, of_two: bool) -> float:
    """A whole number in thousands or more. `of_two`: "8k" is 8192 and "0.5M" 524,288, but "131k" is 131,072, and "2.1M" rounds what no 1024 divides."""
    thousands = size * _DECIMAL[letter]
    if of_two and letter in _BINARY:
        power = 2.0 ** round(math.log2(thousands))
        if letter == "k" and abs(power / thousands - 1) < _ROUNDED:
            return power
        if (size * 1024).is_integer():
            return size * _BINARY[letter]
    return float(round(thousands))
