"""Calls of scale-gp: which of its methods, with which fields, on which server."""

from dataclasses import dataclass
from typing import Any

from tests.contract.clients import Call, Client, Result

CHAT, TEXT = "beta.chat.completions.create", "beta.completions.create"
OLD_CHAT, OLD_TEXT = "chat_completions.create", "completions.create"
RAW_CHAT = "beta.chat.completions.with_raw_response.create"
GENERATING = (CHAT, TEXT, OLD_CHAT, OLD_TEXT)

HELLO: Any = [{"role": "user", "content": "Who are you?"}]
PROMPT = "Once upon a time"
GREEDY: Any = {"temperature": 0, "max_tokens": 12}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY},
}
SDK = Client("sgp/bin/python", "sgp/drive.py")


@dataclass(frozen=True)
class Scale:
    """A server and a key, as scale-gp is told them."""

    url: str
    key: str
    model: str
    path: str = "/sgp"
    retries: int = 0
    seconds: float = 50
    account: str | None = None
    strict: bool = True
    """Whether an answer that is not of the client's types is an error."""

    def call(self, *calls: tuple[str, dict[str, Any]], later: bool = False, **more: Any) -> list[Result]:
        """The result of each call; with `later` by the asynchronous client."""
        owner = "AsyncSGPClient" if later else "SGPClient"
        options = {
            "base_url": self.url + self.path,
            "api_key": self.key,
            "account_id": self.account,
            "max_retries": self.retries,
            "timeout": self.seconds,
            "_strict_response_validation": self.strict,
        }
        made: list[Call] = [
            {"call": f"{owner}.{name}", "with": self._complete(name, fields)} | more for name, fields in calls
        ]
        found = SDK.run({"options": options, "calls": made})
        assert isinstance(found, list)
        return found

    def answers(self, *bodies: dict[str, Any], name: str = CHAT) -> list[Any]:
        """The answers to bodies of one endpoint."""
        results = self.call(*((name, body) for body in bodies))
        assert all("answer" in result for result in results), results
        return [result["answer"] for result in results]

    def texts(self, *bodies: dict[str, Any], name: str = CHAT) -> list[str]:
        """The text of each answer's first choice."""
        return [read_text(answer) for answer in self.answers(*bodies, name=name)]

    def headers(self, *bodies: dict[str, Any], name: str = RAW_CHAT) -> list[dict[str, str]]:
        """The headers of the answers to bodies of one endpoint."""
        return [answer["headers"] for answer in self.answers(*bodies, name=name)]

    def _complete(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields with a model, and with messages or a prompt, for what generates."""
        if not name.endswith("create"):
            return fields
        usual: Any = {"messages": HELLO} if "chat" in name else {"prompt": PROMPT}
        complete: dict[str, Any] = {"model": self.model} | usual | fields
        return complete


def read_text(answer: Any) -> str:
    """The text of an answer or of a chunk, of any of the four endpoints."""
    if "chat_completion" in answer:
        text = answer["chat_completion"]["message"]["content"]
    elif "completion" in answer:
        text = answer["completion"]["text"]
    else:
        (choice, *_) = answer["choices"] or [{"text": ""}]
        part = choice.get("message") or choice.get("delta") or choice
        text = part.get("text") or part.get("content")
    return text or ""


def join_chunks(chunks: list[Any]) -> str:
    """The text of a stream of one choice."""
    return "".join(map(read_text, chunks))


def read_error(result: Result) -> tuple[str, int, Any]:
    """The class, the status and the detail of a failed call."""
    error = result["error"]
    return error["class"], error["status"], error["body"]["detail"]


def list_fields(result: Result) -> list[str]:
    """The paths of the fields that a 422 names."""
    name, status, detail = read_error(result)
    assert (name, status) == ("UnprocessableEntityError", 422), result
    return [".".join(map(str, problem["loc"][1:])) for problem in detail]
