"""The notations that families of models have for reasoning, and which of them a chat template speaks."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from antiphon.rendering.reasoning.notation import Notation

LINES = "\n\n"
"""What most models write between reasoning and answer."""


def think(source: str) -> Notation:
    """`<think>...</think>`: DeepSeek, Qwen 3, QwQ, GLM, SmolLM 3, MiniMax, Kimi and most others. DeepSeek's
    newer templates write the answer at once after the mark."""
    return Notation(("<think>",), "</think>", () if "<｜Assistant｜></think>" in source else (LINES,))


def seed(_source: str) -> Notation:
    """`<seed:think>...</seed:think>`: Seed-OSS."""
    return Notation(("<seed:think>",), "</seed:think>")


def mistral(_source: str) -> Notation:
    """`[THINK]...[/THINK]`: Magistral and the models after it."""
    return Notation(("[THINK]",), "[/THINK]")


def cohere(source: str) -> Notation:
    """`<|START_THINKING|>...<|END_THINKING|>`, then the response in marks of its own: Command R7B and A."""
    response = "<|START_RESPONSE|>"
    return Notation(("<|START_THINKING|>",), "<|END_THINKING|>", (response,) if response in source else ())


def gemma(_source: str) -> Notation:
    """`<|channel>thought`, a line break, the reasoning, `<channel|>`: Gemma 4."""
    return Notation(("<|channel>", "thought\n"), "<channel|>")


def granite(_source: str) -> Notation:
    """Two sentences, which are plain text: Granite 3.2."""
    return Notation(("Here is my thought process:",), "Here is my response:", (LINES,))


def harmony(_source: str) -> Notation:
    """gpt-oss: the channel `analysis`."""
    efforts = ("low", "medium", "high")
    return Notation(("<|channel|>", "analysis", "<|message|>"), "<|end|>", channels=True, efforts=efforts)


Family = Callable[[str], Notation]

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "cohere": cohere,
        "gemma": gemma,
        "granite": granite,
        "harmony": harmony,
        "mistral": mistral,
        "seed": seed,
        "think": think,
    }
)
"""By the name that a model's settings may say."""

NONE = "none"
"""The name for a model that does not reason, whatever its template holds."""

SIGNS: tuple[tuple[str, Family], ...] = (
    ("[/THINK]", mistral),
    ("<|END_THINKING|>", cohere),
    ("<|channel|>analysis", harmony),
    ("<|channel>thought", gemma),
    ("</seed:think>", seed),
    ("</think>", think),
    ("Here is my thought process:", granite),
)
"""What a template holds that speaks a notation, the surest first."""


def notation_of(source: str, family: str | None = None) -> Notation | None:
    """The notation of a template, that of the named family or else what it says; None: it knows none."""
    if family is not None:
        return None if family == NONE else FAMILIES[family](source)
    return next((family(source) for sign, family in SIGNS if sign in source), None)
