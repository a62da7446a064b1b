"""What many users send to a server with keys, all of it mixed: buffered and streamed answers, streams that
are left midway, and everything that is refused. Whatever a caller may choose is another each time, so that
what a server keeps of each value shows."""

import itertools
import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.e2e.furnished import SCARCE, USERS, Place, bearer
from tests.e2e.wire import Wire

TEMPLATE = "{%% for message in messages %%}<|%s|>{{ message.content }}{%% endfor %%}"
"""A chat template of a request's own."""
ANSWERED, NO_KEY, FORBIDDEN, NOT_FOUND, WRONG, LIMITED = {200}, {401}, {403}, {404}, {400}, {429}
FULL = 503
"""A spool whose next file is not made yet: any request may meet it on a machine this busy."""


# --- the kinds ----------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One of many: the number tells it apart from all others."""

    place: Place
    wire: Wire
    number: int

    def post(
        self,
        path: str,
        body: dict[str, object] | bytes,
        key: str | None = None,
        leave: bool = False,
        headers: dict[str, str] | None = None,
    ) -> int:
        """The status of an answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.wire.ask("POST", path, content, self._headers(key, headers or {}), leave).status

    def get(self, path: str, key: str | None = None) -> int:
        return self.wire.ask("GET", path, None, self._headers(key, {})).status

    def _headers(self, key: str | None, more: dict[str, str]) -> dict[str, str]:
        named = {"x-request-id": f"asked-{self.number}"} if self.number % 2 else {}
        return bearer(self.place.key if key is None else key) | named | more

    def text(self, **more: object) -> dict[str, object]:
        """A completion."""
        asked = {"model": "cantor", "prompt": f"{self.number} times the hen", "max_tokens": 1}
        return asked | {"user": f"end-user-{self.number}"} | more

    def chat(self, **more: object) -> dict[str, object]:
        said = {"role": "user", "content": f"What is {self.number}?"}
        tags = {f"tag-{self.number % 997}": f"value-{self.number}"}
        asked = {"model": "cantor", "messages": [said], "max_tokens": 1, "metadata": tags}
        return asked | {"user": f"end-user-{self.number}"} | more

    def member(self) -> str:
        return self.place.users[self.number % USERS]


COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


def completion(call: Call) -> int:
    return call.post(COMPLETIONS, call.text(seed=call.number), headers={"x-user-id": call.member()})


def chat(call: Call) -> int:
    return call.post(CHATS, call.chat(), call.place.tokens[call.number % USERS])


def scored(call: Call) -> int:
    return call.post(COMPLETIONS, call.text(logprobs=2, echo=True, n=2, max_tokens=2))


def stream(call: Call) -> int:
    return call.post(COMPLETIONS, call.text(stream=True, max_tokens=2))


def chat_stream(call: Call) -> int:
    asked = call.chat(stream=True, stream_options={"include_usage": True}, max_tokens=2)
    return call.post(CHATS, asked)


def left(call: Call) -> int:
    """A stream that would go on for long."""
    return call.post(COMPLETIONS, call.text(stream=True, max_tokens=300, ignore_eos=True), leave=True)


def salted(call: Call) -> int:
    return call.post(CHATS, call.chat(cache_salt=f"salt-{call.number}"))


def fireworks(call: Call) -> int:
    return call.post("/fireworks/inference/v1/completions", call.text())


def empower(call: Call) -> int:
    asked = call.chat()
    del asked["metadata"], asked["user"]
    return call.post("/empower/api/v1/chat/completions", asked)


def recorded(call: Call) -> int:
    return call.post(CHATS, call.chat(), call.place.recorded)


def tools(call: Call) -> int:
    name = f"look_up_{call.number}"
    parameters = {"type": "object", "properties": {f"p{call.number}": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
    return call.post(CHATS, call.chat(tools=[tool], max_tokens=4))


def schema(call: Call) -> int:
    """The schemas are also of different sizes."""
    names = [f"p{call.number}_{at}" for at in range(1 + call.number % 5)]
    said = {"type": "object", "properties": {name: {"type": "boolean"} for name in names}}
    return call.post(COMPLETIONS, call.text(guided_json=said, max_tokens=2))


def regex(call: Call) -> int:
    return call.post(COMPLETIONS, call.text(guided_regex=f"[a-z]{{2}}{call.number}", max_tokens=1))


def template(call: Call) -> int:
    return call.post(CHATS, call.chat(chat_template=TEMPLATE % call.number))


def embedding(call: Call) -> int:
    if not call.place.embeds:
        return completion(call)
    return call.post("/v1/embeddings", {"model": "encoder", "input": [f"text {call.number}"]})


def tokenized(call: Call) -> int:
    return call.post("/tokenize", {"model": "cantor", "prompt": f"One of {call.number}"})


def looked(call: Call) -> int:
    paths = ("/v1/models", "/health", "/health/ready", "/v1/models/cantor")
    return call.get(paths[call.number % len(paths)])


def stranger(call: Call) -> int:
    """A key that nobody has."""
    marked = f"ak_{secrets.token_urlsafe(32)}" if call.number % 2 else secrets.token_urlsafe(40)
    return call.post(COMPLETIONS, call.text(), marked)


def nobody(call: Call) -> int:
    return call.post(CHATS, call.chat(model=f"nobody-{call.number}"))


def nowhere(call: Call) -> int:
    return call.get(f"/v1/nowhere/{call.number}")


def unknown(call: Call) -> int:
    return call.post(CHATS, call.chat(**{f"field_{call.number}": 1}))


def broken(call: Call) -> int:
    return call.post(CHATS, b'{"model": "cantor", "messages": [%d' % call.number)


def too_long(call: Call) -> int:
    return call.post(COMPLETIONS, call.text(max_tokens=10**6 + call.number))


def speaking(call: Call) -> int:
    """For a user that is none."""
    return call.post(COMPLETIONS, call.text(), headers={"x-user-id": f"nobody-{call.number}"})


def confined(call: Call) -> int:
    return call.post(COMPLETIONS, call.text(), call.place.confined)


def limited(call: Call) -> int:
    return call.post(COMPLETIONS, call.text(), call.place.limited)


def spent(call: Call) -> int:
    return call.post(COMPLETIONS, call.text(), call.place.spent)


def revoked(call: Call) -> int:
    """A key that is made, limited, used, and revoked."""
    place, wire = call.place, call.wire
    id_, secret = place.made(wire, note=f"made for {call.number}")
    limit = {"subject": "key", "target": id_, "measure": "requests", "amount": SCARCE, "window": "minute"}
    limit = place.admin(wire, "POST", "limits", **limit)["id"]
    statuses = [call.post(COMPLETIONS, call.text(), secret) for _ in range(SCARCE + 1)]
    assert statuses in ([200] * SCARCE + [429], [FULL] * len(statuses)), statuses
    place.admin(wire, "DELETE", f"limits/{limit}")
    place.admin(wire, "DELETE", f"keys/{id_}")
    return call.post(COMPLETIONS, call.text(), secret)


def used(call: Call) -> int:
    """What the operator's tools read."""
    key = (call.place.home / "admin.key").read_text().strip()
    read = (
        "/metrics",
        *(f"/admin/v1/{page}?limit=5" for page in ("usage/entries", "limits", "keys", "audit")),
    )
    return max(call.get(path, key) for path in read)


class Kind(NamedTuple):
    """How often of a thousand, and what may come of it."""

    share: int
    ask: Callable[[Call], int]
    expected: set[int]


KINDS = (
    Kind(230, completion, ANSWERED),
    Kind(90, chat, ANSWERED),
    Kind(8, scored, ANSWERED),
    Kind(80, stream, ANSWERED),
    Kind(40, chat_stream, ANSWERED),
    Kind(30, left, ANSWERED),
    Kind(12, salted, ANSWERED),
    Kind(12, fireworks, ANSWERED),
    Kind(12, empower, ANSWERED),
    Kind(12, recorded, ANSWERED),
    Kind(4, tools, ANSWERED),
    Kind(2, schema, ANSWERED),
    Kind(2, regex, ANSWERED),
    Kind(10, embedding, ANSWERED),
    Kind(10, tokenized, ANSWERED),
    Kind(24, looked, ANSWERED),
    Kind(100, stranger, NO_KEY),
    Kind(70, nobody, NOT_FOUND),
    Kind(40, nowhere, NOT_FOUND),
    Kind(50, unknown, WRONG),
    Kind(30, broken, WRONG),
    Kind(20, too_long, WRONG),
    Kind(20, speaking, FORBIDDEN),
    Kind(20, confined, FORBIDDEN | NOT_FOUND),
    Kind(46, limited, ANSWERED | LIMITED),
    Kind(24, spent, ANSWERED | LIMITED),
    Kind(1, revoked, NO_KEY),
    Kind(1, used, ANSWERED),
)
RARE, SELDOM = Kind(0, template, ANSWERED), 4001
"""It takes a process; one of so many requests."""
OF = sum(kind.share for kind in KINDS)
_BY_NUMBER = [kind for kind in KINDS for _ in range(kind.share)]
STEP = 617
"""Coprime to a thousand: kinds that stand together in the table come apart."""


def kind_of(number: int) -> Kind:
    """The kind of the request of this number: of a thousand that follow each other each as often as its
    share."""
    if number % SELDOM == 0:
        return RARE
    return _BY_NUMBER[number * STEP % OF]


# --- the callers --------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """Callers who ask one request after the other, each over a connection of its own."""

    place: Place
    callers: int = 8
    done: int = 0
    """Requests that came to their end."""
    statuses: Counter[str] = field(default_factory=Counter)
    """By kind and status."""
    kind_of: Callable[[int], Kind] = kind_of
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, requests: int, every: int = 0, look: Callable[[int], None] = lambda done: None) -> None:
        """Asks so many more, and calls `look` whenever so many are done. Raises what went wrong first."""
        numbers = itertools.islice(self._numbers, requests)
        problems: list[BaseException] = []

        def work() -> None:
            try:
                with closing(Wire(self.place.server.url)) as wire:
                    while not problems and (number := self._next(numbers)) is not None:
                        self._one(Call(self.place, wire, number), every, look)
            except BaseException as problem:  # noqa: BLE001 - who waits for the threads raises it
                problems.append(problem)

        threads = [threading.Thread(target=work) for _ in range(self.callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]

    def _next(self, numbers: Iterator[int]) -> int | None:
        with self._lock:
            return next(numbers, None)

    def _one(self, call: Call, every: int, look: Callable[[int], None]) -> None:
        kind = self.kind_of(call.number)
        status = kind.ask(call)
        assert status in kind.expected or status == FULL, (kind.ask.__name__, status, call.number)
        with self._lock:
            self.done += 1
            self.statuses[f"{kind.ask.__name__} {status}"] += 1
            if every and self.done % every == 0:
                look(self.done)
