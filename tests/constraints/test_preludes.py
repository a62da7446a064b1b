"""What may be said before what a choice is held to: reasoning, whose end begins the constraint."""

import json

import pytest

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.grammar_types import (
    CallFormat,
    CallGroup,
    Prelude,
    TextAround,
    TextFrame,
    load_prelude,
)
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import EngineError, InvalidValue

END, OPEN, CLOSE, CHANNEL, THINK = 256, 257, 258, 259, 260
PIECES = (*(bytes([byte]) for byte in range(256)), b"", b"", b"", b"", b"</think>", b"\n\n", b"hello", b'{"')
VOCABULARY = CompilerVocabulary(TokenTable(PIECES, (END,)))

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ANSWERS = {
    ConstraintKind.JSON_OBJECT: ("", '{"a": 1}', "no"),
    ConstraintKind.JSON_SCHEMA: (json.dumps(SCHEMA), '{"a": 1}', '{"b'),
    ConstraintKind.REGEX: ("[a-c]{2}", "ab", "x"),
    ConstraintKind.CHOICE: ('["yes", "no"]', "yes", "x"),
    ConstraintKind.LARK: ('start: "a" B\nB: /[0-9]+/', "a1", "x"),
    ConstraintKind.GBNF: ('root ::= "a" [0-9]', "a1", "x"),
    ConstraintKind.CALLS: (
        CallGroup(
            TextAround.NOTHING,
            ("<tool_call>",),
            (CallFormat(("f",), {"type": "object"}, (), "tools"),),
            ("</tool_call>",),
        ).dump(),
        "<tool_call>f{}</tool_call>",
        "x",
    ),
}
TEXT_MARK = TextFrame(("<think>",), ("</think>", "\n\n"))
TOKEN_MARK = TextFrame((OPEN,), (CLOSE,))
INSIDE = TextFrame((), (THINK, "\n\n"))


def spelt(*parts):
    return [token for part in parts for token in ([part] if isinstance(part, int) else [*part.encode()])]


def takes(matcher, tokens):
    try:
        matcher.consume(tokens)
    except EngineError:
        return False
    return True


def followed(prelude, kind=ConstraintKind.REGEX, source="[a-c]{2}"):
    grammar = check_constraint(Constraint(kind, source, prelude=prelude.dump()), VOCABULARY)
    return lambda: Matcher(grammar, VOCABULARY)


@pytest.mark.parametrize("kind", list(ANSWERS))
def test_every_kind_begins_where_the_reasoning_ends(kind):
    source, good, bad = ANSWERS[kind]
    for frame, said in (
        (TEXT_MARK, ("<think>", "any {text} </th", "</think>\n\n")),
        (TOKEN_MARK, (OPEN, "any {text} </th", CLOSE)),
    ):
        made = followed(Prelude((frame,), optional=True), kind, source)
        matcher = made()
        assert takes(matcher, spelt(*said)) and not matcher.is_complete
        assert takes(matcher, spelt(good)) and matcher.is_complete
        assert takes(matcher := made(), spelt(good)) and matcher.is_complete
        assert not takes(made(), spelt(*said, bad)) and not takes(made(), spelt(bad))


def test_nothing_ends_before_the_reasoning_does():
    for frame, said in ((TEXT_MARK, ("<think>", "abc")), (TOKEN_MARK, (OPEN, "abc")), (INSIDE, ("abc",))):
        matcher = followed(Prelude((frame,)))()
        assert takes(matcher, spelt(*said))
        assert not matcher.is_complete and not matcher.compute_mask()[END // 8] >> END % 8 & 1


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_after_its_budget_the_reasoning_is_closed(budget):
    for frame in (TOKEN_MARK, INSIDE):
        made = followed(
            Prelude((frame,), budget=budget, forbidden_text="</think>" if frame is INSIDE else "")
        )
        before = [OPEN] if frame is TOKEN_MARK else []
        close = CLOSE if frame is TOKEN_MARK else THINK
        matcher = made()
        assert takes(matcher, spelt(*before, "x" * budget))
        assert matcher.find_forced()[:1] == [close]
        assert not takes(made(), spelt(*before, "x" * (budget + 1)))
        assert takes(made(), spelt(*before, "x" * max(0, budget - 1), close))


def test_a_mark_that_is_one_token_is_spelt_by_nothing_else():
    made = followed(Prelude((INSIDE,), budget=100, forbidden_text="</think>"))
    assert takes(made(), spelt("a </thin"))
    assert not takes(made(), spelt("a </think>"))


def test_of_several_channels_the_last_holds_the_answer():
    thought = TextFrame((CHANNEL, "analysis"), (CLOSE,))
    aside = TextFrame((CHANNEL, "commentary"), (CLOSE,))
    made = followed(Prelude((thought, aside), optional=True, allows_several=True, answer=(CHANNEL, "final")))
    said = (CHANNEL, "analysis", "one", CLOSE, CHANNEL, "commentary", "two", CLOSE)
    matcher = made()
    assert takes(matcher, spelt(*said, CHANNEL, "final", "ab")) and matcher.is_complete
    assert takes(made(), spelt(CHANNEL, "final", "ab"))
    assert not takes(made(), spelt(*said, "ab")) and not takes(made(), spelt(*said, CHANNEL, "final", "xy"))


def test_a_constraint_is_tried_without_what_stands_before_it():
    """Else reasoning would hide that nothing can satisfy it."""
    impossible = json.dumps({"type": "string", "minLength": 5, "maxLength": 3})
    constraint = Constraint(
        ConstraintKind.JSON_SCHEMA, impossible, field="guided_json", prelude=Prelude((TEXT_MARK,)).dump()
    )
    with pytest.raises(InvalidValue) as caught:
        check_constraint(constraint, VOCABULARY)
    assert caught.value.message.startswith("guided_json")


def test_a_prelude_is_read_back_as_it_was_written():
    prelude = Prelude(
        (TEXT_MARK, TOKEN_MARK), optional=True, budget=7, forbidden_text="</think>", answer=(CHANNEL, "final")
    )
    assert load_prelude(prelude.dump()) == prelude
