"""Reasoning in the notations of the families: read from texts in their published formats, however they are
cut."""

from itertools import pairwise
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.rendering.call_notation import CALL_FAMILIES as CALLS
from antiphon.rendering.call_readers import CallName, PlainReader, ReasoningPart, Span, VisiblePart
from antiphon.rendering.reasoning import (
    NO_REASONING,
    REASONING_FAMILIES,
    ReasoningCounter,
    ReasoningPosition,
    ReasoningReader,
    detect_reasoning,
)
from antiphon.settings.models import ModelSettings

FREE, INSIDE, AFTER = ReasoningPosition.BEFORE, ReasoningPosition.INSIDE, ReasoningPosition.AFTER
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'

# Each written for this test in the format that the model's authors publish: family, where the output begins,
# text, reasoning, answer, where the reasoning ends in the text (None: it does not; 0: there is none).
READINGS = [
    ("think", FREE, "<think>\nTwo and two.\n</think>\n\nFour.", "Two and two.", "Four.", "Four."),
    ("think", INSIDE, "Two and\n\ntwo.\n</think>\n\nFour.", "Two and\n\ntwo.", "Four.", "Four."),
    ("think", FREE, "\n<think>a</think>b ", "a", "b ", "b "),
    ("think", FREE, "<think>\n\n</think>\n\nFour.", "", "Four.", "Four."),
    ("think", INSIDE, "\n</think>\n\nFour.", "", "Four.", "Four."),
    ("think", AFTER, "Four. <think>a</think>", "", "Four. <think>a</think>", ""),
    ("think", FREE, " Four.", "", " Four.", ""),
    ("think", FREE, "Four <think>a</think>", "", "Four <think>a</think>", ""),
    ("think", FREE, "<thinking>a", "", "<thinking>a", ""),
    ("think", FREE, "<thi", "", "<thi", ""),
    ("think", FREE, "", "", "", ""),
    ("think", INSIDE, "it never ends", "it never ends", "", None),
    ("think", FREE, "<think>it never ends\n\n", "it never ends", "", None),
    ("think", INSIDE, "it ends in </thi", "it ends in </thi", "", None),
    ("think", INSIDE, "a <think> b </think> c </think> d", "a <think> b", "c </think> d", "c </think> d"),
    ("think", INSIDE, "a < b </ think> </think>c", "a < b </ think>", "c", "c"),
    ("think", INSIDE, "a</think>\n \n", "a", "", None),
    ("seed", FREE, "<seed:think>a</seed:think>b", "a", "b", "b"),
    ("mistral", FREE, "[THINK]Two [/ and two.[/THINK]Four.", "Two [/ and two.", "Four.", "Four."),
    ("cohere", FREE, "<|START_THINKING|>Hm.<|END_THINKING|>Four.", "Hm.", "Four.", "Four."),
    ("cohere", INSIDE, "Hm.<|END_THINKING|>Four.", "Hm.", "Four.", "Four."),
    ("gemma", FREE, "<|channel>thought\nHm.\n<channel|>Four.", "Hm.", "Four.", "Four."),
    ("gemma", FREE, "<|channel>thought\n<channel|>Four.", "", "Four.", "Four."),
    (
        "granite",
        FREE,
        "Here is my thought process:\nHm.\n\nHere is my response:\n\nFour.",
        "Hm.",
        "Four.",
        "Four.",
    ),
]


def reader_of(family, begin, calls=None, kept=False):
    inner = PlainReader() if calls is None else CALLS[calls]("").build_reader(())
    return ReasoningReader(REASONING_FAMILIES[family](""), begin, inner, kept)


def heard(reader, parts):
    """Reasoning, text, and names of calls."""
    said = [each for part in parts for each in reader.add(part)] + reader.end()
    assert all(each.text for each in said if isinstance(each, VisiblePart | ReasoningPart))
    return (
        "".join(each.text for each in said if isinstance(each, ReasoningPart)),
        "".join(each.text for each in said if isinstance(each, VisiblePart)),
        [each.name for each in said if isinstance(each, CallName)],
    )


@pytest.mark.parametrize("at", range(len(READINGS)))
def test_a_text_is_read_whole_and_cut_at_every_character(at):
    family, begin, text, reasoning, answer, rest = READINGS[at]
    ends = None if rest is None else len(text) - len(rest)
    wanted = [] if not reasoning and not ends and ends is not None else [(0, ends)]
    for parts in ([text], list(text), *([text[:cut], text[cut:]] for cut in range(len(text)))):
        reader = reader_of(family, begin)
        assert heard(reader, parts) == (reasoning, answer, [])
        assert reader.spans == (wanted if rest != "" else [])


PARTS = [
    "<think>",
    "</think>",
    "<thi",
    "nk>",
    "[THINK]",
    "[/THINK]",
    "<",
    "/",
    " ",
    "\n",
    "text",
    CALL,
    "<tool_call>",
]


@given(
    st.sampled_from(sorted(set(REASONING_FAMILIES) - {"harmony"})),
    st.sampled_from(list(ReasoningPosition)),
    st.booleans(),
    st.lists(st.sampled_from(PARTS), max_size=10),
    st.lists(st.integers(0, 200)),
)
def test_the_cut_never_changes_what_is_read(family, begin, kept, parts, cuts):
    text = "".join(parts)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[first:last] for first, last in pairwise(places)]
    outcomes, spans = [], []
    for each in ([text], list(text), pieces):
        reader = reader_of(family, begin, "hermes", kept)
        outcomes.append(heard(reader, each))
        spans.append(list(reader.spans))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert spans[0] == spans[1] == spans[2]


def test_a_call_inside_reasoning_stays_reasoning():
    text = f"<think>I call {CALL}</think>\n\nI look.\n{CALL}"
    for parts in ([text], list(text)):
        assert heard(reader_of("think", FREE, "hermes"), parts) == (f"I call {CALL}", "I look.", ["f"])
    assert heard(reader_of("think", INSIDE, "hermes"), [f"I call {CALL}"]) == (f"I call {CALL}", "", [])


def test_a_constrained_answer_loses_only_the_gap():
    text = "a</think>\n\n\n b"
    for parts in ([text], list(text)):
        assert heard(reader_of("think", INSIDE, kept=True), parts) == ("a", "\n b", [])
        assert heard(reader_of("think", INSIDE), parts) == ("a", "b", [])
    assert heard(reader_of("mistral", INSIDE, kept=True), ["a[/THINK] b"]) == ("a", " b", [])
    assert heard(reader_of("think", FREE, kept=True), [" <think>"]) == ("", " <think>", [])


# --- harmony ------------------------------------------------------------------------------------------------

THOUGHT = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
HARMONY = [
    (f"{THOUGHT}Two and two.{NEXT}<|channel|>final<|message|>Four.", "Two and two.", "Four.", []),
    (
        f"{THOUGHT} Hm. {NEXT}<|channel|>commentary<|message|>I look.{NEXT}{THOUGHT}Now f.{NEXT}"
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
        " Hm. \nNow f.",
        "I look.",
        ["f"],
    ),
    ("<|channel|>final<|message|>Four.", "", "Four.", []),
    (f"{THOUGHT}it never ends", "it never ends", "", []),
    (f"{THOUGHT}ends in <|en", "ends in <|en", "", []),
    (f"{THOUGHT}{NEXT}<|channel|>final<|message|>Four.", "", "Four.", []),
]


@pytest.mark.parametrize("at", range(len(HARMONY)))
def test_the_channel_in_which_is_thought_is_reasoning(at):
    text, *wanted = HARMONY[at]
    spans = []
    for parts in ([text], list(text), *([text[:cut], text[cut:]] for cut in range(len(text)))):
        reader = CALLS["harmony"]("").build_reader(())
        assert heard(reader, parts) == tuple(wanted)
        spans.append(list(reader.spans))
    assert all(each == spans[0] for each in spans)
    thought = "".join(text[begin:end] for begin, end in spans[0])
    assert thought.replace(THOUGHT, "").replace("<|end|>", "") == wanted[0].replace("\n", "")


# --- which, where, and how much -----------------------------------------------------------------------------


def test_a_template_says_its_notation():
    signs = {
        "think": "{{ message.content.split('</think>')[-1] }}",
        "seed": "{{ '<seed:think>' }}{{ '</seed:think>' }}",
        "mistral": "[THINK]{{ thinking }}[/THINK]",
        "cohere": "<|START_THINKING|>{{ plan }}<|END_THINKING|><|START_RESPONSE|>",
        "gemma": "<|channel>thought\n<channel|>",
        "granite": "Write your thoughts after 'Here is my thought process:'",
        "harmony": "<|channel|>analysis<|message|>",
    }
    assert signs.keys() == REASONING_FAMILIES.keys()
    for name, source in signs.items():
        assert detect_reasoning(source) == REASONING_FAMILIES[name](source)
    assert detect_reasoning("{{ message.content }}") is None
    assert (
        detect_reasoning("</think>", "seed") == REASONING_FAMILIES["seed"]("")
        and detect_reasoning("</think>", NO_REASONING) is None
    )


def test_a_mark_in_what_is_said_counts_only_where_marks_are_text():
    notation = REASONING_FAMILIES["mistral"]("")
    assert notation.find_begin("[THINK]a", "[THINK]a") is INSIDE
    assert notation.find_begin("[THINK]a", "[THINK]a", is_text=False) is AFTER
    assert REASONING_FAMILIES["harmony"]("").find_begin("So", "So") is AFTER


@pytest.mark.parametrize(
    ("family", "end", "said", "begin"),
    [
        ("think", "<|im_start|>assistant\n", "", FREE),
        ("think", "<|im_start|>assistant\n<think>\n", "", INSIDE),
        ("think", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "", AFTER),
        ("think", "<｜Assistant｜></think>", "", AFTER),
        ("think", "</think><|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", "", FREE),
        ("think", "<think>\nI th", "<think>\nI th", INSIDE),
        ("think", "<think>\nI think.</think>\nSo", "<think>\nI think.</think>\nSo", AFTER),
        ("think", "<|im_start|>assistant\nSo", "So", AFTER),
        ("gemma", "<|turn>model\n<|channel>thought\n<channel|>", "", AFTER),
        ("cohere", "<|CHATBOT_TOKEN|><|START_THINKING|>", "", INSIDE),
        ("harmony", "<|start|>assistant", "", FREE),
    ],
)
def test_the_end_of_the_prompt_says_where_the_output_begins(family, end, said, begin):
    assert REASONING_FAMILIES[family]("").find_begin(end, said) is begin


def test_tokens_are_counted_by_where_their_text_begins():
    spans: list[Span] = [(0, 7)]
    thoughts = ReasoningCounter(spans)
    for size in (3, 0, 4, 2, 1):
        thoughts.add_token(size)
    assert thoughts.tokens == 3
    spans[:] = [(0, None)]
    assert thoughts.tokens == 5
    spans.clear()
    assert thoughts.tokens == 0


def test_the_settings_name_the_families():
    (setting,) = (each for each in msgspec.structs.fields(ModelSettings) if each.name == "reasoning")
    assert {*get_args(get_args(setting.type)[0])} == {"auto", NO_REASONING, *REASONING_FAMILIES}
