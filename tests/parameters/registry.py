"""How a case is said. One entry is a field, where it stands, two or more values of it, and what then differs:

    @case(GENERATING, "temperature", {"n": 8}, 0, 2)
    def zero_is_greedy_and_two_is_not(cold, hot):
        assert len(set(cold.texts)) == 1 < len(set(hot.texts))

The runner sends one request for each value, alike but for the field, and calls the function with the answers.
Then it calls the function again with one of the answers in the place of all, as a server that ignored the
field would give: the function has to fail.
"""

import json
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httpx2

from antiphon.engines.base import InfillTokens, TokenRequest
from tests.parameters.spots import Spot


class Left(Enum):
    """A value that is none."""

    OUT = "left out"


OUT = Left.OUT
"""The field is not sent."""

INFILL = InfillTokens(5, 6, 7)
"""The tokens of the recorded server's model for filling in the middle."""


@dataclass(frozen=True)
class Answer:
    """What came of one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    json: Any
    """None of a stream or plain text."""
    events: tuple[Any, ...] = ()
    """Of a stream, the data; `[DONE]` stays a text."""
    asked: tuple[TokenRequest, ...] = ()
    """Of a recorded case: what reached the engine."""
    entry: Mapping[str, Any] | None = None
    """Of a ledgered case: what the ledger says of it."""

    @property
    def choices(self) -> list[Any]:
        assert self.status == 200, self.body
        found: list[Any] = self.json["choices"]
        return found

    @property
    def texts(self) -> list[str]:
        """Of each choice what it says; an empty text where it only calls."""
        return [each["text"] if "text" in each else each["message"]["content"] or "" for each in self.choices]

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.texts[0]

    @property
    def message(self) -> Any:
        return self.choices[0]["message"]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments of what the first choice calls."""
        found = self.message.get("tool_calls") or []
        return [(each["function"]["name"], each["function"]["arguments"]) for each in found]

    @property
    def finish(self) -> str:
        found: str = self.choices[0]["finish_reason"]
        return found

    @property
    def usage(self) -> dict[str, Any]:
        assert self.status == 200, self.body
        found: dict[str, Any] = self.json["usage"]
        return found

    @property
    def refusal(self) -> str:
        """The sentence of an error, whatever the dialect's shape."""
        assert self.status >= 400, self.body
        detail = self.json.get("detail")
        if detail is not None:
            return detail if isinstance(detail, str) else "; ".join(each["msg"] for each in detail)
        found: str = (self.json.get("error") or self.json)["message"]
        return found


class Asker:
    """One server of cantor (or one that records), which a value may be asked of too."""

    def __init__(
        self,
        client: httpx2.Client,
        requests: list[TokenRequest] | None = None,
        model: str = "cantor",
        *,
        has_ledger: bool = False,
    ) -> None:
        """`model`: what stands here in cantor's place. `has_ledger`: whether the client may read one."""
        self.client = client
        self._requests = requests
        self._model = model
        self._has_ledger = has_ledger

    def ids(self, text: str) -> list[int]:
        """The model's token ids of a text, without a begin token."""
        asked = {"model": self._model, "prompt": text, "add_special_tokens": False}
        found: list[int] = self.client.post("/tokenize", json=asked).json()["tokens"]
        return found

    def ask(self, url: str, body: Mapping[str, Any]) -> Answer:
        """The answer to one request."""
        before = len(self._requests or ())
        known = {"model": self._model} if body.get("model") == "cantor" else {}
        reply = self.client.post(url, json={**body, **known})
        kind = reply.headers.get("content-type", "")
        parsed = reply.json() if kind.startswith("application/json") else None
        lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
        events = tuple(line if line == "[DONE]" else json.loads(line) for line in lines)
        asked = tuple((self._requests or ())[before:])
        entry = self._entry(reply.headers["x-request-id"]) if self._has_ledger and reply.is_success else None
        return Answer(reply.status_code, reply.headers, reply.content, parsed, events, asked, entry)

    def _entry(self, request: str) -> Mapping[str, Any]:
        """The row of a request, which is in the database within a second."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            page = self.client.get("/admin/v1/usage/entries", params={"request_id": request}).json()
            if page["data"]:
                found: Mapping[str, Any] = page["data"][0]
                return found
            time.sleep(0.2)
        raise AssertionError("no entry came")


Given = Mapping[str, Any] | Callable[[Asker], Mapping[str, Any]]
Check = Callable[..., None]


@dataclass(frozen=True)
class Case:
    """One field, its values, and what has to differ."""

    spots: tuple[Spot, ...]
    field: str
    given: Given
    values: tuple[Any, ...]
    check: Check
    recorded: bool = False
    after: Callable[[Asker], None] | None = None
    thinks: bool = False
    ledgered: bool = False
    hosted: bool = False

    @property
    def server(self) -> str:
        """The fixture of whom it is asked."""
        if self.ledgered:
            return "ledgered"
        if self.hosted:
            return "vendor"
        return "recorder" if self.recorded else "thinker" if self.thinks else "cantor"

    def bodies(self, spot: Spot, asker: Asker) -> list[dict[str, Any]]:
        """One request for each value, alike but for the field."""
        given = self.given(asker) if callable(self.given) else self.given
        values = [value(asker) if callable(value) else value for value in self.values]
        return [_placed(spot, given, self.field, value) for value in values]


CASES: list[Case] = []


def case(
    spots: tuple[Spot, ...],
    field: str,
    given: Given,
    *values: Any,
    recorded: bool = False,
    after: Callable[[Asker], None] | None = None,
    thinks: bool = False,
    ledgered: bool = False,
    hosted: bool = False,
) -> Callable[[Check], Check]:
    """Registers a case for each of the spots where the field is supported.

    `given`: fields of the request's top level that all requests share, over the spot's own body; or a
    function of the Asker that makes them. `values`: at least two, of the field; OUT leaves it out; a function
    of the Asker is called for its value. `recorded`: asked of a scripted token engine, where a script takes
    cantor's place, and the answers' `asked` holds what reached it. `thinks`: asked of a real server of cantor
    as a model that reasons. `ledgered`: of a real server with keys, whose ledger the answers' `entry` is of.
    `hosted`: of a vendor's double, whose text tells as JSON what reached it.
    `after` is called after each request.
    """

    def register(check: Check) -> Check:
        assert len(values) > 1, "two values at least"
        CASES.append(Case(spots, field, given, values, check, recorded, after, thinks, ledgered, hosted))
        return check

    return register


def _placed(spot: Spot, given: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    body: dict[str, Any] = deepcopy({**spot.body, **given})
    scope: Any = body
    for step in spot.path:
        scope = scope[step]
    scope.pop(name, None)
    if value is not OUT:
        scope[name] = value
    return body
