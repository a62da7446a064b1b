"""A client of an OpenAI-compatible address, on the standard library: JSON answers, and streams of pieces.

One connection for each request. Closing a stream closes its connection, which is how a server learns that the
answer is not wanted any more.
"""

import json
import ssl
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    RemoteDisconnected,
)
from urllib.parse import quote, urlsplit

from antiphon.cli.sse import Events, TooLong

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 600.0
"""Seconds without a byte. Antiphon sends a comment every few; others are silent while they read a prompt."""

LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of an answer that is no stream."""

RECEIVED_AT_ONCE = 64 * 1024

GRANTED = (200, 201, 204)


class CallFailed(Exception):
    """The request was refused, or the connection failed; the message is for people."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class NobodyThere(CallFailed):
    """Nothing listens at the address."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the server counted them."""

    prompt: int
    completion: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A model, as the server lists it."""

    name: str
    parent: str = ""
    """Of an adapter, the model that it adapts."""
    root: str = ""
    """Whose weights it speaks with."""


@dataclass(frozen=True, slots=True)
class Card:
    """What the server says of one model."""

    embeds: bool = False
    """Whether it makes vectors and no text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one chunk of a stream brought."""

    text: str = ""
    reasoning: str = ""
    finish: str = ""
    usage: Usage | None = None


class Client:
    """Speaks to one address, as one caller."""

    def __init__(self, url: str, key: str | None = None, patience: float = READ_TIMEOUT) -> None:
        """`patience`: seconds without a byte after which a connection has failed."""
        self._patience = patience
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise CallFailed(f"{url!r} is not an address; write it as http://127.0.0.1:8000") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise CallFailed(f"{url!r} is not an address; write it as http://127.0.0.1:8000")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{parts.scheme}://{shown}{f':{self._port}' if self._port else ''}{self._prefix}"

    def models(self) -> list[str]:
        """The names of the models that this caller may use. Raises CallFailed."""
        return [listed.name for listed in self.listed()]

    def listed(self) -> list[Listed]:
        """The models that this caller may use. Raises CallFailed."""
        with self._called("GET", "/v1/models") as response:
            answer = _decoded(response.read(LARGEST_ANSWER))
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list):
            raise CallFailed(f"{self.url} does not answer like an OpenAI-compatible server")
        return [
            Listed(row["id"], _text(row.get("parent")), _text(row.get("root")))
            for row in rows
            if isinstance(row, dict) and isinstance(row.get("id"), str)
        ]

    def card(self, name: str) -> Card:
        """One model, by its name or an alias. Raises CallFailed, with the status where there is none."""
        path = quote(name, safe="/:@", errors="replace")  # what is no character is in no name
        answer = self.asked("GET", f"/v1/models/{path}")
        profile = answer.get("profile") if isinstance(answer, dict) else None
        return Card(embeds=isinstance(profile, dict) and isinstance(profile.get("embedding"), dict))

    def said(self, path: str, body: dict[str, object]) -> str:
        """What the server answers with in plain text to a JSON body. Raises CallFailed."""
        with self._called("POST", path, body) as response:
            return response.read(LARGEST_ANSWER).decode("utf-8", "replace")

    def asked(self, method: str, path: str, body: dict[str, object] | None = None) -> object:
        """The JSON value that the server answers with; None where it answers with none. Raises CallFailed."""
        with self._called(method, path, body) as response:
            return _decoded(response.read(LARGEST_ANSWER))

    def parts(self, path: str) -> Iterator[bytes]:
        """What the server answers with, part by part, however much it is. Raises CallFailed, also for an
        answer that breaks off."""
        with self._called("GET", path) as response:
            while part := response.read1(RECEIVED_AT_ONCE):
                yield part
            if response.length:
                raise CallFailed("the answer broke off before its end")

    def metrics(self) -> str:
        """The page of the server's numbers, as it stands. Raises CallFailed."""
        with self._called("GET", "/metrics") as response:
            return response.read(LARGEST_ANSWER).decode("utf-8", "replace")

    def chat(self, body: dict[str, object]) -> Generator[Piece]:
        """The pieces of a streamed chat completion, until its end.

        Raises CallFailed, also for a stream that breaks off or carries an error. Close it to end early.
        """
        wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._called("POST", "/v1/chat/completions", wanted) as response:
            for data in _events(response):
                if data == "[DONE]":
                    return
                yield _piece(data)
        raise CallFailed("the stream broke off before its end")

    @contextmanager
    def _called(
        self, method: str, path: str, body: dict[str, object] | None = None
    ) -> Iterator[HTTPResponse]:
        """A response that grants what was asked, closed with its connection afterwards; else CallFailed."""
        sent = None if body is None else json.dumps(body).encode()
        with closing(self._connected()) as connection:
            try:
                connection.request(method, self._prefix + path, sent, self._headers)
                with connection.getresponse() as response:  # it may own the socket, so it is closed too
                    yield _granted(response)
            except (OSError, HTTPException) as problem:
                raise CallFailed(f"the connection to {self.url} broke ({_reason(problem)})") from None
            except TooLong:
                raise CallFailed(f"{self.url} sent an event without an end") from None

    def _connected(self) -> HTTPConnection:
        """A connection that has been made. Raises NobodyThere."""
        connection = self._kind(self._host, self._port, timeout=CONNECT_TIMEOUT)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as problem:
            connection.close()
            raise CallFailed(
                f"the certificate of {self.url} is not trusted ({problem.verify_message.rstrip('.')})"
            ) from None
        except ssl.SSLError:
            connection.close()
            plain = self.url.replace("https:", "http:", 1)
            raise CallFailed(
                f"what answers at {self.url} speaks no TLS; a server without a proxy before it is {plain}"
            ) from None
        except OSError as problem:
            connection.close()
            raise NobodyThere(
                f"nothing answers at {self.url} ({_reason(problem)}); start a server there with antiphon "
                "serve, or name another with --url"
            ) from None
        connection.sock.settimeout(self._patience)
        return connection


def _events(response: HTTPResponse) -> Iterator[str]:
    events = Events()
    while received := response.read1(RECEIVED_AT_ONCE):
        yield from events.feed(received)


def _piece(data: str) -> Piece:
    """What a chunk says; fields that are not as expected count as absent. Raises CallFailed for an error
    event."""
    chunk = _decoded(data)
    if not isinstance(chunk, dict):
        raise CallFailed("the server sent a chunk that is no JSON object")
    if chunk.get("error"):
        raise _said(chunk, 0, "the server ended the stream with an error")
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    return Piece(
        text=_text(delta.get("content")),
        reasoning=_text(reasoning),
        finish=_text(choice.get("finish_reason")),
        usage=_usage(chunk.get("usage")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens"), value.get("completion_tokens")
    return Usage(prompt, completion) if isinstance(prompt, int) and isinstance(completion, int) else None


def _granted(response: HTTPResponse) -> HTTPResponse:
    """The response, if it grants what was asked; else its error is raised as CallFailed."""
    if response.status not in GRANTED:
        answer = _decoded(response.read(LARGEST_ANSWER))
        raise _said(answer, response.status, f"the server answered {response.status} {response.reason}")
    return response


def _said(answer: object, status: int, otherwise: str) -> CallFailed:
    """The error that an OpenAI-shaped body carries, or a flat one is."""
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if isinstance(error, str):
        return CallFailed(error, status=status)
    said = error if isinstance(error, dict) else {}
    return CallFailed(_text(said.get("message")) or otherwise, status=status, code=_text(said.get("code")))


def _decoded(text: str | bytes) -> object:
    """The JSON value; None for what is no JSON."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return None
    return value


def _reason(problem: BaseException) -> str:
    if isinstance(problem, (IncompleteRead, RemoteDisconnected)):
        return "the server ended it before its answer was whole"
    if isinstance(problem, BadStatusLine):
        return "what answers there does not speak HTTP"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    return str(problem) or type(problem).__name__
