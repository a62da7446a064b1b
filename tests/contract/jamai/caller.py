"""Calls of jamaibase: which of its methods, with which fields, on which server."""

from dataclasses import dataclass
from typing import Any

from tests.contract.clients import Call, Client, Result

CHAT = "generate_chat_completions"
HELLO: Any = [{"role": "user", "content": "Who are you?"}]
SDK = Client("jamai/bin/python", "jamai/drive.py")


@dataclass(frozen=True)
class Base:
    """A server and a key, as jamaibase is told them."""

    url: str
    key: str
    model: str = "antiphon/cantor"
    user: str = ""
    project: str = "default"
    path: str = "/jamai/api"

    def call(self, *calls: tuple[str, dict[str, Any]], later: bool = False, **more: Any) -> list[Result]:
        """The result of each call; with `later` by the asynchronous client."""
        owner = "JamAIAsync" if later else "JamAI"
        options = {
            "api_base": self.url + self.path,
            "token": self.key,
            "project_id": self.project,
            "user_id": self.user,
        }
        made: list[Call] = [{"call": f"{owner}.{name}", "with": given} | more for name, given in calls]
        found = SDK.run({"options": options, "calls": made})
        assert isinstance(found, list)
        return found

    def chat(self, *bodies: dict[str, Any], later: bool = False, **more: Any) -> list[Result]:
        """The results of chats."""
        usual = {"$type": "ChatRequest", "model": self.model, "messages": HELLO, "temperature": 0}
        return self.call(*((CHAT, {"request": usual | body}) for body in bodies), later=later, **more)

    def answers(self, *bodies: dict[str, Any]) -> list[Any]:
        """The answers to chats."""
        results = self.chat(*bodies)
        assert all("answer" in result for result in results), results
        return [result["answer"] for result in results]

    def texts(self, *bodies: dict[str, Any]) -> list[str]:
        """The text of each answer's first choice."""
        return [answer["choices"][0]["message"]["content"] or "" for answer in self.answers(*bodies)]


def join_chunks(chunks: list[Any]) -> str:
    """The text of a stream of one choice."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def read_error(result: Result) -> tuple[str, str]:
    """The class and the sentence of a failed call."""
    error = result["error"]
    return error["class"], error["body"]
