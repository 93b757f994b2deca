"""Which shipped model a printed name means: "meta-llama/Llama-3.1-8B-Instruct", "GPT-2 (124M)", "ViT-Large", "bert-large-uncased"."""

from __future__ import annotations

import re
from functools import cache, lru_cache

import msgspec

from sim.accuracy.row import Row
from sim.framework.framework import load_framework
from sim.model.load import load_model, models
from sim.model.network import describe
from sim.model.parts import Shape
from sim.model.specs.decoder import Decoder

_SAME: tuple[tuple[str, str], ...] = (
    # (whole plain name as a pattern, shipped model): the same layers under another name
    (r"gpt2(small)?", "gpt2-124m"),
    (r"gpt2medium", "gpt2-355m"),
    (r"gpt2large", "gpt2-774m"),
    (r"gpt2xl", "gpt2-1.5b"),
    (r"gpt3small", "gpt3-125m"),  # Brown et al. 2020, table 2.1
    (r"gpt3medium", "gpt3-350m"),
    (r"gpt3large", "gpt3-760m"),
    (r"gpt3xl", "gpt3-1.3b"),
    (r"gptj", "gpt-j-6b"),
    (r"(gpt)?neox", "gpt-neox-20b"),
    (r"tinyllama", "tinyllama-1.1b"),
    (r"llama4scout.*", "llama4-scout"),
    (r"llama4maverick.*", "llama4-maverick"),
    (r"deepseek(r1|v3).*", "deepseek-v3"),
    (r"deepseekcoderv2lite", "deepseek-v2-lite"),
    (r"deepseek(v25|coderv2)", "deepseek-v2"),  # their config.json are DeepSeek-V2's
    (r"glm4[67]", "glm-4.5"),  # their config.json are GLM-4.5's but for the length
    (r"commandr\+|commandrplus", "command-r-plus-104b"),
    (r"commandr", "command-r-35b"),
    (r"mistrallarge\d*", "mistral-large-123b"),
    (r"bloom", "bloom-176b"),
    (r"starcoder(base)?", "starcoder-15b"),
    (r"grok", "grok-1"),
    (r"(vit|deit)b\d*", "vit-b16"),
    (r"vitl\d*", "vit-l16"),
    (r"vith\d*", "vit-h14"),
    (r"rn(18|34|50|101|152)(v15?)?", r"resnet\1"),
    (r"resnet(18|34|50|101|152)[a-d]", r"resnet\1"),  # He et al. 2018: other stems and shortcuts, hardly more work
    (r"(se)?(resnext)(50|101)", r"\1-\2\3-32x4d"),
    (r"convnext(?:v1)?t", "convnext-tiny"),
    (r"convnext(?:v1)?s", "convnext-small"),
    (r"convnext(?:v1)?b", "convnext-base"),
    (r"convnext(?:v1)?l", "convnext-large"),
    (r"(stablediffusion|sd)(v?1[45]?)?", "sd-1.5"),
    (r"(stablediffusion|sd)v?20?(base)?", "sd-2-base"),
    (r"stablediffusion(v?21)", "sd-2.1"),
    (r"(stablediffusionxl|sdxl)(v?10)?(base)?(10)?", "sdxl"),
    (r"flux1?(dev)?", "flux.1-dev"),
    (r"flux1?schnell", "flux.1-schnell"),
    (r"whisperlarge(v1)?", "whisper-large-v2"),  # of the same sizes
    (r"inception3?", "inception-v3"),
    (r"(wav2vec20?|hubert|data2vecaudio)(base)?", "wav2vec2-base"),  # the same layers; what they learn differs in the head
    (r"(wav2vec20?|hubert|data2vecaudio)large(lv60)?", "wav2vec2-large"),
    (r"transformerxl", "transformer-xl-base"),
    (r"phi15", "phi-1.5"),
    (r"phi35mini", "phi3-mini"),  # its config.json is phi-3-mini's but for the length
    (r"bert", "bert-base"),
    (r"biobert|(bio)?bert(base.*|b)", "bert-base"),
    (r"(bio)?bert(large.*|l)", "bert-large"),
    (r"gnmt.*", "gnmt"),
    (r"maskrcnn(r(esnet)?50(fpn)?)?", "mask-rcnn-r50-fpn"),
    (r"(?:flan)?t5(?:x??|v?11)(small|base|large|xl|xxl)", r"flan-t5-\1"),  # T5 1.1, which Flan-T5 was tuned from and T5X trains
    (r"transformerbig|bigtransformer", "transformer-big"),
    (r"transformer(base)?", "transformer-base"),
    (r"phi4", "phi4-14b"),
    (r"ssd", "ssd300"),
    (r"(ssd)?retinanet(resnext50|r?x50)?(32x4d)?(fpn)?", "retinanet-resnext50"),
    (r"dlrm(criteo)?kaggle", "dlrm-kaggle"),
    (r"dlrm(v1|small)?(criteo)?(terabyte|1tb)", "dlrm-terabyte"),
    (r"dlrm(dcn(v?2)?|v2)+(criteo)?(terabyte|1tb)?(multihot)?", "dlrm-dcnv2"),
)
_WHOLE: tuple[tuple[str, str], ...] = (
    # the same, where the name's size is one of several
    (r"nemotron3nano(30ba3b)?", "nemotron3-nano"),
    (r"nemotron3super(120ba12b)?", "nemotron3-super"),
    (r"bloomz?(7b1|71?b)", "bloom-7b1"),
)
_STEMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # (a name's letters and generation as a pattern, shipped families to look in, the first first)
    (r"llama|llama1|llama2|vicuna|alpaca|codellama", ("llama2", "llama", "codellama", "llama31")),
    (r"llama3\d?", ("llama3", "llama31", "llama32")),
    (r"gpt|gpt3|megatron|megatrongpt|gptmegatron|mtnlg|turingnlg|cerebrasgpt", ("gpt3", "megatron", "gpt2")),
    (r"gpt2", ("gpt2",)),
    (r"nemotron\d?|nemotrongpt|nemotron\dgpt", ("nemotron",)),
    (r"qwen(2|25)(coder|math)?", ("qwen25",)),
    (r"deepseekcoder", ("deepseekcoder", "deepseek")),
    (r"qwen1?", ("qwen15", "qwen25", "qwen3")),
    (r"internlm2\d?", ("internlm2",)),
    (r"baichuan", ("baichuan2",)),
    (r"chatglm\d", ("chatglm3",)),
    (r"smollm", ("smollm2",)),
    (r"gptneox|neox", ("gptneox",)),
    (r"bloom", ("bloom",)),
)
_CUT = "|".join(
    (
        r"proxy|\bcut|truncat|\d+ ?l(ayers?)?\b",
        r"mask[-_ ]?r[-_ ]?cnn.*(1\d\d|c4|c5|swin|vit)",
        r"retinanet.*(1\d\d|\br(esnet|n)?[- ]?\d|_r(esnet)?50|swin|vit)",
        r"\bssd.*(vgg|mobilenet|(resnet|rn)[- ]?(?!50)\d)",
    )
)
"""Some of a model's layers: how many is not in its name. Mask R-CNN, SSD and RetinaNet on another backbone."""
_NEAR = 0.07
"""Share by which sizes in names may differ: GPT-2 XL is 1.5B, 1.6B and 1558M."""
_SIZE = r"(\d+(?:\.\d+)?) ?([mbt])(?![a-z0-9])"
_BILLION = 1e9
_DROPPED = r"\b(meta|nvidia|instruct|chat|it|hf|(?<=b )base|pretrain(ed|ing)?|model|v0\.\d|\d{4}|\d+k|squad|q?lora|llm)\b"


def shipped_model(name: str, params: int | None = None, modern: bool = True) -> str:
    """The shipped model that `name` means, "" where there is none. `params` stands in for a size that the name leaves out; `modern`: a
    Llama without its generation is of 2024 or later."""
    if re.search(_CUT, name.lower()):
        return ""
    text = _words(name)
    whole = re.sub(r"\(.*|(?<![a-zA-Z])v\d+(\.\d+)?\b", "", name).strip()
    for candidate in (whole, whole.split(" ")[0], text, re.sub(_SIZE, "", text)):
        found = next((one for one in models() if _plain(candidate) and _equal(one, candidate)), "")
        if found and (size_of(candidate) or _holds(found, size_of(text))):
            return found
    for pattern, one in _WHOLE:
        if re.fullmatch(pattern, _plain(text)):
            return one
    for pattern, one in _SAME:
        sized = (size_of(text) or params) and pattern.startswith(("gpt2", "bloom", "bert"))  # of these, sizes tell more than the name
        stack = pattern.startswith("transformer") and (size_of(text) or 0) >= _BILLION  # "Transformer 1T" is none of 2017
        if not sized and not stack and (same := re.fullmatch(pattern, _plain(re.sub(_SIZE, "", text)))):
            return same.expand(one).removeprefix("-")
    size = size_of(text) or params
    return _nearest(_plain(re.sub(_SIZE + ".*", "", text)), float(size), modern) if size else ""


def with_widths(row: Row) -> Row:
    """The row with the width and the experts of the shipped model that it names, where it leaves them out: recipes differ by them."""
    if row.n_experts or not (name := shipped_model(row.model_name, row.params)):
        return row
    spec = load_model(name)
    if not isinstance(spec, Decoder) or row.hidden not in (None, spec.hidden):
        return row
    return msgspec.structs.replace(row, hidden=row.hidden or spec.hidden, n_experts=spec.moe.experts if spec.moe else None)


def size_of(name: str) -> int | None:
    """Parameters that a name states ("7B", "124M", "1T"); None where it states none, or experts ("8x7B", "30B-A3B")."""
    text = name.lower()
    if re.search(r"\d+x\d|\ba\d+(\.\d+)?b\b", text):
        return None
    found = re.search(_SIZE, text)
    return round(float(found[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[found[2]]) if found else None


def _words(name: str) -> str:
    """Lower case, without the maker in front, what was done to the model, or remarks; a size in parentheses stays."""
    text = name.lower()
    maker, _, rest = text.rpartition("/")
    text = rest if maker and re.search(r"[a-z]{2}", rest) else text
    text = re.sub(r"\((small|base|medium|large|big|xl|xxl|retinanet|dcn[- ]?v2|(?:criteo )?(?:kaggle|terabyte|1tb))\)", r"\1", text)
    inside = re.search(rf"\([^()]*?{_SIZE}[^()]*\)", text)
    text = re.sub(r"\([^()]*\)", "", text) + (f" {inside[1]}{inside[2]}" if inside and not size_of(re.sub(r"\(.*", "", text)) else "")
    text = re.sub(r".*\bdistill(ed)? ", "", text.replace("_", " ").replace("-", " "))  # DeepSeek-R1-Distill-Qwen-7B is a Qwen
    text = re.sub(r"\bt5x\b", "t5v11", text)  # without their blank "t5x xl" and "t5 xxl" are one
    text = re.sub(r"\bllama (1 )?30b\b", "llama 33b", text)  # printed as either (Touvron et al. 2023)
    return re.sub(_DROPPED, "", text)


_ABOUT = 0.2
"""Share by which the size in a name may differ from the parameters of a model whose own name states none."""


@cache
def _holds(one: str, size: int | None) -> bool:
    """A shipped decoder has as many parameters as a name states; true where the name states none."""
    spec = load_model(one)
    if size is None or not isinstance(spec, Decoder):
        return True
    network = describe(spec, Shape(micro=1, seq=128, precision="bf16"), load_framework("pytorch"))
    return abs(size / network.parameters - 1) <= _ABOUT


_ACTIVE = r"[- ]a\d+(\.\d+)?b$"
"""Parameters that one token passes through, which names of mixtures may leave out: Qwen3-235B."""


def _equal(one: str, name: str) -> bool:
    """Both say the same, however parted; sizes are compared as numbers: OPT-13B is not opt-1.3b."""
    whole = re.sub(_ACTIVE, "", one)
    return (_plain(one) == _plain(name) and size_of(one) == size_of(name)) or (
        whole != one and _plain(whole) == _plain(name) and size_of(whole) == size_of(name)
    )


def _nearest(stem: str, size: float, modern: bool) -> str:
    families = next((known for pattern, known in _STEMS if re.fullmatch(pattern, stem)), (stem,))
    if stem == "llama" and modern:
        families = ("llama3", "llama31", "llama2", "llama")
    for family in families:
        fits = [(abs(own / size - 1), one) for one, (known, own) in _sizes().items() if known == family]
        if fits and min(fits)[0] <= _NEAR:
            return min(fits)[1]
    return ""


@cache
def _sizes() -> dict[str, tuple[str, float]]:
    """Shipped model -> its family's letters and its size, of those that state one."""
    return {
        name: (_plain(re.sub("-?" + _SIZE + ".*", "", name)), float(size)) for name in models() if (size := size_of(name.replace("-", " ")))
    }


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    text = re.sub(r"\b((?:vi|dei)t.)(b|l|h)(ase|arge|uge)", r"\1\2", name.lower())
    return re.sub(r"[^a-z0-9+]", "", text)
