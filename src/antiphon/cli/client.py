"""A client of an OpenAI-compatible server: JSON responses, and streams of chat completions.

Each request has its own connection. Closing a stream closes its connection, so the server stops generating.
The client ignores the environment's proxies.
"""

import json
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from antiphon.cli.output import CallFailed, ServerUnreachable

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 600.0
"""Seconds without a byte. Other servers than Antiphon send nothing while they process a prompt."""

JSON = "application/json"

DEFAULT_HEADERS = {"content-type": JSON, "accept-encoding": "identity"}
"""Without compression, which would delay parts of a stream."""

NOT_FOUND_STATUSES = (404, 405)
"""The HTTP statuses if a server lacks a model or cannot describe single models."""

Shape = TypeVar("Shape", bound=msgspec.Struct)


class TokenUsage(msgspec.Struct, frozen=True):
    """The token counts of one request, as the server reports them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class ChunkDelta(msgspec.Struct):
    """The new text of one chunk."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    """One choice of a chunk. The client requests one choice only."""

    delta: ChunkDelta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One event of a stream, with only the fields that the client uses."""

    choices: list[Choice] = []
    usage: TokenUsage | None = None
    error: object = None

    @property
    def text(self) -> str:
        return self._delta.content or ""

    @property
    def reasoning(self) -> str:
        return self._delta.reasoning_content or self._delta.reasoning or ""

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason or "" if self.choices else ""

    @property
    def _delta(self) -> ChunkDelta:
        return (self.choices[0].delta if self.choices else None) or ChunkDelta()


class ModelRow(msgspec.Struct):
    """A row of the server's list of models."""

    id: str
    parent: str | None = None
    """The base model of an adapter."""
    root: str | None = None
    """The model that provides the weights."""


class ServedModels(msgspec.Struct):
    """The list of models."""

    data: list[ModelRow]


class Client:
    """Calls the server at one address with one key."""

    def __init__(self, url: str, key: str | None = None, read_timeout: float = READ_TIMEOUT) -> None:
        """`read_timeout`: seconds without a byte after which a connection has failed."""
        try:
            base = httpx2.URL(url if "//" in url else f"http://{url}")
        except (httpx2.InvalidURL, UnicodeError):
            base = httpx2.URL("")
        if base.scheme not in ("http", "https") or not base.host or (base.port or 0) > 65535:
            raise CallFailed(f"{url!r} is not an address; write it as http://127.0.0.1:8000")
        # Reading the trusted certificates takes 50 ms. A context without certificates trusts no server.
        tls = (
            ssl.create_default_context()
            if base.scheme == "https"
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        self.url = str(base).rstrip("/").removesuffix("/v1")
        self._http = httpx2.Client(
            headers=DEFAULT_HEADERS | ({"authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx2.Timeout(read_timeout, connect=CONNECT_TIMEOUT),
            limits=httpx2.Limits(max_keepalive_connections=0),
            verify=tls,
            trust_env=False,
        )

    def list_models(self) -> list[str]:
        """Returns the names of the models that this key may use. Raises CallFailed."""
        return [row.id for row in self.list_model_rows()]

    def list_model_rows(self) -> list[ModelRow]:
        """Returns the models that this key may use. Raises CallFailed."""
        with self._open("GET", "/v1/models") as response:
            return self._decode(ServedModels, response.read()).data

    def find_chat_model(self) -> str:
        """Returns the first model that can chat. A model that the server does not describe counts as a chat
        model. Raises CallFailed."""
        names = self.list_models()
        if not names:
            raise CallFailed(f"{self.url} has no model")
        for name in names:
            try:
                if not self._is_embedding(name):
                    return name
            except CallFailed as problem:
                if problem.status:  # the server cannot describe its models
                    return name
                raise
        raise CallFailed(
            f"{self.url} has no model for chats: {', '.join(names)} make vectors or rank documents"
        )

    def require_chat_model(self, name: str) -> str:
        """Returns the name of a model that can chat. Raises CallFailed if it cannot chat or is unknown."""
        is_embedding = self._is_embedding(name)
        if is_embedding:
            raise CallFailed(
                f"{name} makes vectors or ranks documents, and cannot chat; name a model that generates"
            )
        if is_embedding is None and name not in (names := self.list_models()):
            raise CallFailed(f"there is no model {name!r}; the server has: {', '.join(names) or 'none'}")
        return name

    def _is_embedding(self, name: str) -> bool | None:
        """Whether a model makes vectors instead of text; None if the server does not describe it."""
        path = quote(name, safe="/:@", errors="replace")  # no model's name contains a surrogate
        try:
            description = self.call("GET", f"/v1/models/{path}")
        except CallFailed as problem:
            if problem.status not in NOT_FOUND_STATUSES:
                raise
            return None
        profile = description.get("profile") if isinstance(description, dict) else None
        return isinstance(profile, dict) and isinstance(profile.get("embedding"), dict)

    def call(self, method: str, path: str, body: object = None) -> object:
        """Sends a request and returns the JSON value of the response; None if the response is no JSON.

        Raises CallFailed.
        """
        with self._open(method, path, body) as response:
            return _parse_json(response.read())

    def upload(self, path: str, media_type: str, body: bytes) -> object:
        """Sends `body` with a media type, and returns the JSON value of the response. Raises CallFailed."""
        with self._open("POST", path, body, media_type) as response:
            return _parse_json(response.read())

    def stream_parts(self, path: str) -> Iterator[bytes]:
        """Yields the body of the response in parts. Raises CallFailed, also if the connection breaks."""
        with self._open("GET", path) as response:
            yield from response.iter_bytes()

    def get_text(self, path: str) -> str:
        """Returns the body of the response as text. Raises CallFailed."""
        return b"".join(self.stream_parts(path)).decode("utf-8", "replace")

    def stream_chat(self, body: dict[str, object]) -> Generator[Chunk]:
        """Yields the chunks of a streamed chat completion.

        Raises CallFailed, also if the stream breaks off or contains an error. Close the generator to stop
        earlier.
        """
        stream_body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._open("POST", "/v1/chat/completions", stream_body) as response:
            for event in httpx2.EventSource(response):
                if event.data == "[DONE]":
                    return
                if event.data:
                    chunk = self._decode(Chunk, event.data.encode())
                    if chunk.error:
                        default_message = "the server ended the stream with an error"
                        raise _parse_refusal({"error": chunk.error}, 0, default_message)
                    yield chunk
        raise CallFailed("the stream broke off before its end")

    def _decode(self, shape: type[Shape], data: bytes) -> Shape:
        """Parses a JSON body as `shape`. Raises CallFailed if it has another structure."""
        try:
            return msgspec.json.decode(data, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise CallFailed(f"{self.url} does not answer like an OpenAI-compatible server") from None

    @contextmanager
    def _open(
        self, method: str, path: str, body: object = None, media_type: str = JSON
    ) -> Iterator[httpx2.Response]:
        """Sends a request and yields the successful response; closes its connection afterwards.

        `body`: bytes, or a value to encode as JSON. Raises CallFailed.
        """
        # json.dumps writes ASCII, so it can also send lone surrogates
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        headers = {"content-type": media_type}
        try:
            with self._http.stream(method, self.url + path, content=content, headers=headers) as response:
                if not response.is_success:
                    default_message = f"the server answered {response.status_code} {response.reason_phrase}"
                    raise _parse_refusal(_parse_json(response.read()), response.status_code, default_message)
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as problem:
            raise self._explain_unreachable(problem) from None
        except httpx2.SSEError as problem:
            raise CallFailed(f"{self.url} sent no readable stream of events: {problem}") from None
        except httpx2.TransportError as problem:
            raise CallFailed(f"the connection to {self.url} broke ({_explain_reason(problem)})") from None

    def _explain_unreachable(self, problem: httpx2.TransportError) -> CallFailed:
        """Builds the error for a server that cannot be reached."""
        cause = _find_system_error(problem)
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = cause.verify_message.rstrip(".")
            return CallFailed(f"the certificate of {self.url} is not trusted ({reason})")
        if isinstance(cause, ssl.SSLError):
            http_url = self.url.replace("https:", "http:", 1)
            return CallFailed(
                f"the server at {self.url} does not use TLS; without a TLS proxy, the address is {http_url}"
            )
        return ServerUnreachable(
            f"nothing answers at {self.url} ({_explain_reason(problem)}); start a server there with "
            "antiphon serve, or name another with --url"
        )


def _parse_refusal(body: object, status: int, default_message: str) -> CallFailed:
    """Builds the error from the JSON body of a failed response. The error is the field `error`, as in
    OpenAI's API, or the body itself."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, str):
        return CallFailed(error, status=status)
    fields = error if isinstance(error, dict) else {}
    message, code = fields.get("message"), fields.get("code")
    return CallFailed(str(message or default_message), status=status, code=str(code or ""))


def _parse_json(data: bytes) -> object:
    """Parses JSON. Returns None if the data is no JSON."""
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value


def _find_system_error(problem: BaseException | None) -> OSError | None:
    """Returns the operating system's error that caused a library's error; None if there is none."""
    while problem is not None and not isinstance(problem, OSError):
        problem = problem.__cause__ or problem.__context__
    return problem


def _explain_reason(problem: httpx2.TransportError) -> str:
    """Returns the reason of a failed connection in words."""
    cause, reason = _find_system_error(problem), str(problem)
    if isinstance(cause, ConnectionError) and not isinstance(problem, httpx2.ConnectError):
        reason = "closed connection"
    if "closed connection" in reason or "disconnected" in reason:
        return "the server closed it before the answer was complete"
    if isinstance(problem, httpx2.RemoteProtocolError):
        return "the server does not use HTTP"
    if cause is not None and cause.strerror:
        return cause.strerror.lower()
    return "timed out" if isinstance(problem, httpx2.TimeoutException) else reason
