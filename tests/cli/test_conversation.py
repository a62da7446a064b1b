"""What a chat remembers, and what it writes."""

import json
from pathlib import Path

import pytest

from antiphon.cli.chat import Conversation


def spoken() -> Conversation:
    chat = Conversation("cantor", system="Be brief.")
    chat.add_turn("Hello?", "Grüß Gott.")
    return chat


def test_a_question_comes_after_the_system_text_and_the_turns():
    assert spoken().ask("And?") == {
        "model": "cantor",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": "Grüß Gott."},
            {"role": "user", "content": "And?"},
        ],
    }
    assert Conversation("cantor").ask("Hi")["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_chat_is_written_as_json_or_markdown_and_over_nothing(tmp_path: Path):
    spoken().save(tmp_path / "chat.json")
    spoken().save(tmp_path / "chat.md")
    assert json.loads((tmp_path / "chat.json").read_text("utf-8"))["messages"] == spoken().messages()
    assert "**assistant**\n\nGrüß Gott." in (tmp_path / "chat.md").read_text("utf-8")
    with pytest.raises(FileExistsError):
        spoken().save(tmp_path / "chat.md")
