"""The notations that families of models have for reasoning, and which of them a chat template speaks."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from antiphon.rendering.reasoning.notation import ReasoningNotation

LINES = "\n\n"
"""What most models write between reasoning and answer."""


def think(source: str) -> ReasoningNotation:
    """`<think>...</think>`: DeepSeek, Qwen 3, QwQ, GLM, SmolLM 3, MiniMax, Kimi and most others. DeepSeek's
    newer templates write the answer at once after the mark."""
    return ReasoningNotation(("<think>",), "</think>", () if "<｜Assistant｜></think>" in source else (LINES,))


def seed(_source: str) -> ReasoningNotation:
    """`<seed:think>...</seed:think>`: Seed-OSS."""
    return ReasoningNotation(("<seed:think>",), "</seed:think>")


def mistral(_source: str) -> ReasoningNotation:
    """`[THINK]...[/THINK]`: Magistral and the models after it."""
    return ReasoningNotation(("[THINK]",), "[/THINK]")


def cohere(source: str) -> ReasoningNotation:
    """`<|START_THINKING|>...<|END_THINKING|>`, then the response in marks of its own: Command R7B and A."""
    response = "<|START_RESPONSE|>"
    return ReasoningNotation(("<|START_THINKING|>",), "<|END_THINKING|>", (response,) if response in source else ())


def gemma(_source: str) -> ReasoningNotation:
    """`<|channel>thought`, a line break, the reasoning, `<channel|>`: Gemma 4."""
    return ReasoningNotation(("<|channel>", "thought\n"), "<channel|>")


def granite(_source: str) -> ReasoningNotation:
    """Two sentences, which are plain text: Granite 3.2."""
    return ReasoningNotation(("Here is my thought process:",), "Here is my response:", (LINES,))


def harmony(_source: str) -> ReasoningNotation:
    """gpt-oss: the channel `analysis`."""
    efforts = ("low", "medium", "high")
    return ReasoningNotation(("<|channel|>", "analysis", "<|message|>"), "<|end|>", channels=True, efforts=efforts)


Family = Callable[[str], ReasoningNotation]

REASONING_FAMILIES: Mapping[str, Family] = MappingProxyType(
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

NO_REASONING = "none"
"""The name for a model that does not reason, whatever its template holds."""

REASONING_SIGNS: tuple[tuple[str, Family], ...] = (
    ("[/THINK]", mistral),
    ("<|END_THINKING|>", cohere),
    ("<|channel|>analysis", harmony),
    ("<|channel>thought", gemma),
    ("</seed:think>", seed),
    ("</think>", think),
    ("Here is my thought process:", granite),
)
"""What a template holds that speaks a notation, the surest first."""


def detect_reasoning(source: str, family: str | None = None) -> ReasoningNotation | None:
    """The notation of a template, that of the named family or else what it says; None: it knows none."""
    if family is not None:
        return None if family == NO_REASONING else REASONING_FAMILIES[family](source)
    return next((family(source) for sign, family in REASONING_SIGNS if sign in source), None)
