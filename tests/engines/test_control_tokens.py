"""Control tokens are found in pieces that can have them, the longest first, and nowhere else."""

from antiphon.engines.base import ControlTokens, TextPiece


def test_control_tokens_are_found_where_they_may_be() -> None:
    tokens = ControlTokens({"<s>": 1, "<s><s>": 2, "[a.c]": 3})
    pieces = [TextPiece("x<s><s><s>", control=True), TextPiece("<s>", control=False)]
    assert list(tokens.split(pieces)) == ["x", 2, "", 1, "", "<s>"]
    assert list(tokens.split([TextPiece("[abc][a.c]", control=True)])) == ["[abc]", 3, ""]
    assert list(ControlTokens({}).split([TextPiece("<s>", control=True)])) == ["<s>"]
