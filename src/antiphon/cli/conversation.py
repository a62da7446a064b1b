"""What was said in a chat, as the API takes it and as a file keeps it. Knows no terminal and no server."""

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Conversation:
    """One chat: the model that is asked, the system text, and the turns so far."""

    model: str
    system: str = ""
    max_tokens: int | None = None
    """Most tokens of an answer; None leaves it to the server."""
    turns: list[tuple[str, str]] = field(default_factory=list)
    """(role, text), oldest first: `user` and `assistant` in turn."""

    def messages(self) -> list[dict[str, str]]:
        """As the API takes them."""
        said = [("system", self.system)] if self.system else []
        return [{"role": role, "content": text} for role, text in [*said, *self.turns]]

    def ask(self, text: str) -> dict[str, object]:
        """The body of the next request; the question is part of the chat once `answered` is told."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": [*self.messages(), {"role": "user", "content": text}],
        }
        return body if self.max_tokens is None else {**body, "max_tokens": self.max_tokens}

    def answered(self, question: str, answer: str) -> None:
        """Keeps a question with its answer."""
        self.turns += [("user", question), ("assistant", answer)]

    def save(self, path: Path) -> None:
        """Writes a new file: JSON for `.json`, else Markdown. Raises OSError, also when the file exists."""
        with path.open("x", encoding="utf-8") as file:
            file.write(self._as_json() if path.suffix == ".json" else self._as_markdown())

    def _as_json(self) -> str:
        return json.dumps({"model": self.model, "messages": self.messages()}, indent=2, ensure_ascii=False)

    def _as_markdown(self) -> str:
        parts = [f"# A chat with {self.model}"]
        parts += [f"**{message['role']}**\n\n{message['content']}" for message in self.messages()]
        return "\n\n".join(parts) + "\n"
