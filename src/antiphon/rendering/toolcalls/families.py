"""The notations that families of models have for calls, and which of them a chat template speaks."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from antiphon.rendering.toolcalls.headed import HeaderReader
from antiphon.rendering.toolcalls.layout import Channel, CallNotation
from antiphon.rendering.toolcalls.reading import FirstReader, ObjectReader

OBJECT = ('{"name": "', '", "arguments": ', "}")
"""A call as an object: before the name, before the arguments, after them."""


def hermes(source: str) -> CallNotation:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen, cantor. There is a line break
    between the tags and the object, unless the template writes none."""
    line = "" if "<tool_call>{" in source else "\n"
    before, after, end = OBJECT
    return CallNotation(
        open=("<tool_call>",),
        before=(line + before,),
        after=(after,),
        end=(end + line,),
        close=("</tool_call>",),
        again=("\n",),
        reader=lambda: ObjectReader("<tool_call>", "</tool_call>"),
    )


def llama(_source: str) -> CallNotation:
    """`{"name": ..., "parameters": ...}` and nothing else, several with semicolons: Llama 3, and Gemma, which
    is asked to write so."""
    before, _, end = OBJECT
    return CallNotation(
        open=(),
        before=(before,),
        after=('", "parameters": ',),
        end=(end,),
        close=(),
        between=("; ",),
        sign=r'[ \t\r\n]*\{[ \t\r\n]*"name"',
        reader=lambda: FirstReader("<|python_tag|>"),
    )


def mistral(source: str) -> CallNotation:
    """`[TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]`: Mistral up to tokenizer 7."""
    before, after, end = OBJECT
    return CallNotation(
        open=("[TOOL_CALLS]", " [" if "[TOOL_CALLS] [" in source else "["),
        before=(before,),
        after=(after,),
        end=(end,),
        close=("]",),
        between=(", ",),
        short_ids=True,
        reader=lambda: ObjectReader("[TOOL_CALLS]", ""),
    )


def mistral_headed(_source: str) -> CallNotation:
    """`[TOOL_CALLS]NAME[ARGS]{...}`, one after the other: Mistral from tokenizer 11 on."""
    name = re.compile(r"\s*([\w-]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*$")
    return CallNotation(
        open=("[TOOL_CALLS]",),
        before=(),
        after=("[ARGS]",),
        end=(),
        close=(),
        again=(),
        short_ids=True,
        reader=lambda: HeaderReader("[TOOL_CALLS]", name),
    )


def deepseek(source: str) -> CallNotation:
    """DeepSeek's control tokens around a name and JSON; in V3 and R1 the JSON is fenced, from V3.1 on it is
    not."""
    fenced = "```json" in source
    begin, separator, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    opening, closing = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    name = re.compile(rf"\s*(?:function{separator})?\s*([\w-]+)\s*(?:{separator})?\s*(?:```json)?\s*$")
    return CallNotation(
        open=(opening,),
        before=(begin, "function", separator) if fenced else (begin,),
        after=("\n```json\n",) if fenced else (separator,),
        end=("\n```", end) if fenced else (end,),
        close=(closing,),
        between=("\n",) if fenced else (),
        reader=lambda: HeaderReader(begin, name, (end, opening, closing), "```"),
    )


def harmony(_source: str) -> CallNotation:
    """gpt-oss: a channel for each thing said; what is thought stands in `analysis`."""
    channel, message, end, start = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
    name = re.compile(r"([\w-]+)\s*(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?\s*\w*\s*<\|message\|>\s*$")
    again = (end, start, "assistant")
    final = f"{channel}final{message}"
    noise = (final, f"{channel}commentary{message}", f"{end}{start}assistant")
    thought = (f"{channel}analysis{message}", end)
    reader = partial(HeaderReader, f"{channel}commentary to=functions.", name, noise, thought=thought)
    return CallNotation(
        open=(channel,),
        before=("commentary to=functions.",),
        after=(" ", "<|constrain|>", "json", message),
        end=(),
        close=(),
        frames=(
            Channel((channel, "analysis", message), again),
            Channel((channel, "commentary", message), again),
            Channel((channel, "final", message)),
        ),
        reader=reader,
        framed_reader=partial(reader, last=final),
    )


def phi(source: str) -> CallNotation:
    """`<|tool_call|>[{"name": ..., "arguments": ...}, ...]<|/tool_call|>`: Phi 4 mini."""
    before, after, end = OBJECT
    return CallNotation(
        open=("<|tool_call|>", "["),
        before=(before,),
        after=(after,),
        end=(end,),
        close=("]", "<|/tool_call|>"),
        between=(", ",),
        in_system="message['tools']" in source or "message.tools" in source,
        reader=lambda: ObjectReader("<|tool_call|>", "<|/tool_call|>"),
    )


Family = Callable[[str], CallNotation]

CALL_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "deepseek": deepseek,
        "harmony": harmony,
        "hermes": hermes,
        "llama": llama,
        "mistral": mistral,
        "mistral-headed": mistral_headed,
        "phi": phi,
    }
)
"""By the name that a model's settings may say."""

CALL_SIGNS: tuple[tuple[str, Family], ...] = (
    ("<tool_call>", hermes),
    ("<｜tool▁calls▁begin｜>", deepseek),
    ("[ARGS]", mistral_headed),
    ("[TOOL_CALLS]", mistral),
    ("<|channel|>", harmony),
    ("<|tool_call|>", phi),
    ("<|tool|>", phi),
    ("<|python_tag|>", llama),
    ('"parameters": ', llama),
    ("<start_of_turn>", llama),
)
"""What a template holds that speaks a notation, the surest first."""


def detect_calls(source: str, family: str | None = None) -> CallNotation:
    """The notation of a template, that of the named family or else what it says; Hermes' for one that has
    none."""
    if family is not None:
        return CALL_FAMILIES[family](source)
    return next((family for sign, family in CALL_SIGNS if sign in source), hermes)(source)
