"""The shield by itself: which characters it replaces, and that names of any shape are kept."""

import time

import pytest

from antiphon.rendering.template.shield import Shield, TemplateTexts


def told(shield, *texts, between=""):
    """Texts of a caller one after the other, as a template would write them; names in brackets."""
    cover = shield.cover(texts)
    pieces = cover.split_pieces(between.join(map(cover.hide, texts)))
    return "".join(f"⟦{piece.text}⟧" if piece.control else piece.text for piece in pieces)


def test_only_what_makes_names_is_replaced():
    shield = Shield(["<|im_end|>", "[INST]"])
    assert set(shield.replaced_characters) == set("<|>_[]")
    assert shield.cover(["hello, world"]).hide("hello, world") == "hello, world"


@pytest.mark.parametrize(
    "name", ["<|end|>", "EOT", "EOT ", "<|end of text|>", '<"x">', "\\x", "ß", "a", "▁end"]
)
def test_any_name_is_kept_from_callers_but_not_templates(name):
    shield = Shield([name])
    assert told(shield, f"one {name} two {name}") == f"one {name} two {name}"
    assert [piece.text for piece in shield.cover([]).split_pieces(f"x{name}y") if piece.control] == [name]


def test_a_name_that_cannot_be_hidden_is_never_structure():
    for name in ("  ", '"', '\\"'):
        assert not any(piece.control for piece in Shield([name]).cover([]).split_pieces(f"a{name}b"))


def test_the_longest_name_wins_where_several_begin():
    pieces = Shield(["<a>", "<a><b>", "<b>"]).cover([]).split_pieces("<a><b><a>")
    assert [piece.text for piece in pieces] == ["<a><b>", "<a>"]


@pytest.mark.parametrize("cut", range(11))
def test_no_two_texts_make_a_name_together(cut):
    name = "<|im_end|>"
    assert told(Shield([name]), name[:cut], name[cut:]) == name
    assert told(Shield([name]), *name) == name


def test_all_letters_are_replaced_if_a_template_ends_in_a_name():
    shield = Shield(["<|user|>"], TemplateTexts(("x<|", "|>")))
    cover = shield.cover(["user"])
    assert not any(piece.control for piece in cover.split_pieces("<|" + cover.hide("user") + "|>"))
    assert [piece.control for piece in cover.split_pieces("<|" + "user" + "|>")] == [True]


@pytest.mark.parametrize(
    ("sought", "stays"),
    [("<think>", True), ("</", False), (">", False), ("<|end|>", False), ("a</s>b", False), ("nd|", False)],
)
def test_what_is_sought_stays_only_where_it_can_do_no_harm(sought, stays):
    shield = Shield(["<|end|>", "</s>"], TemplateTexts(searched=(sought, "plain")))
    assert (shield.cover([sought]).hide(sought) == sought) is stays


def test_a_vocabulary_of_many_names_costs_little():
    begun = time.process_time()
    template = TemplateTexts(("<start>",) * 50, ("<think>", "</think>"))
    shield = Shield([f"<unused{number}>" for number in range(6000)], template)
    assert time.process_time() - begun < 3
    rendered = "<unused17> text <unused5999> and < no name " * 1000
    begun = time.process_time()
    pieces = shield.cover([]).split_pieces(rendered)
    assert time.process_time() - begun < 1
    assert sum(piece.control for piece in pieces) == 2000
