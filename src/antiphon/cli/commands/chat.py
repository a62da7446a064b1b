"""`antiphon chat`: a conversation in the terminal with a running server, or with a server that it starts.

Ctrl-C ends an answer by closing its connection, so the server stops generating. The conversation stays in
memory; only /save writes it to a file.
"""

import base64
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from antiphon.cli.admin_client import find_operator_file, find_server, read_operator_key
from antiphon.cli.client import Client, TokenUsage
from antiphon.cli.local_servers import start_server
from antiphon.cli.model_files import fetch_model_argument
from antiphon.cli.output import (
    FAILED,
    KEY_VARIABLE,
    UNAUTHORIZED,
    CallFailed,
    Problem,
    ServerUnreachable,
    note,
    report_errors,
)
from antiphon.domain.values import Struct, field
from antiphon.errors import SettingsError
from antiphon.rendering.template.shield import escape_surrogates, is_valid_unicode

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tab and newline. In an answer they could move the cursor or set the clipboard."""

DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"

HELP = """\
/system TEXT   give the model instructions; without TEXT, remove them
/model NAME    switch to another model; without NAME, list the models
/image FILE    send an image (PNG, JPEG, WebP or GIF) with the next question
/audio FILE    send a recording (WAV or MP3) with the next question
/new           start a new conversation
/save FILE     write the chat to a new file: JSON for .json, else Markdown
/help          show this list
/quit          leave (or Ctrl-D)
Ctrl-C stops the answer; a second Ctrl-C leaves. To begin a message with /, type //."""


MEDIA_TYPES = {
    "/image": {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif"},
    "/audio": {".wav": "wav", ".mp3": "mp3"},
}
"""The formats that each command takes, by the ends of files' names."""

MAX_FILE_BYTES = 20 << 20
"""The most bytes of a file; servers take no larger ones."""


class LeaveChat(Exception):
    """The user wants to leave the chat."""


def run(url: str | None, model: str | None, system: str | None, max_tokens: int | None = None) -> int:
    """Runs the chat until the user leaves, and returns the exit status. `max_tokens`: the limit of each
    answer."""
    terminal = Terminal()
    with report_errors(_advise), ExitStack() as stack:
        if system and not is_valid_unicode(system):
            raise SettingsError("--system is not UTF-8")
        client, requested_model = _connect(url, model, terminal, stack)
        model_name = (
            client.require_chat_model(requested_model) if requested_model else client.find_chat_model()
        )
        terminal.note(f"{model_name} at {client.url}; /help lists the commands")
        return Chat(client, ChatHistory(model_name, system or "", max_tokens), terminal).run_loop()


def _connect(
    url: str | None, model: str | None, terminal: "Terminal", stack: ExitStack
) -> tuple[Client, str | None]:
    """Returns a client of a server that answers, and the name of the model to use.

    If `url` is None and no server runs, it starts a server with the model. That server ends when `stack`
    closes. Raises CallFailed and AntiphonError.
    """
    address, key = find_server(url, may_be_foreign=True)
    client = Client(address, key)
    try:
        client.list_models()
    except ServerUnreachable:
        if url:
            raise
    else:
        return client, model
    terminal.note(f"nothing answers at {client.url}: starting a server for this chat")
    if model:
        fetch_model_argument(model)
    started_url = stack.enter_context(start_server(["--model", model] if model else []))
    # If keys are enabled, the new server has written the operator's key to this machine.
    return Client(started_url, key or read_operator_key()), None


def _advise(problem: Problem) -> str:
    """Returns advice about a problem; empty if there is none."""
    if isinstance(problem, CallFailed) and problem.status == UNAUTHORIZED:
        hint = f"; the operator's is in {find_operator_file()}" if read_operator_key() else ""
        return f"Set {KEY_VARIABLE} to a key of the server{hint}."
    is_too_long = isinstance(problem, CallFailed) and problem.code == "context_length_exceeded"
    return "/new starts over." if is_too_long else ""


class Terminal:
    """Standard input, output and error of this process."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._colour = self.interactive and "NO_COLOR" not in os.environ

    def read(self, prompt: str) -> str | None:
        """Reads a line; returns None after Ctrl-D or at the end of the input. Raises KeyboardInterrupt at
        Ctrl-C."""
        if not self.interactive:
            # Decodes UTF-8 in every locale. Invalid bytes become surrogates, which the chat rejects.
            line = sys.stdin.buffer.readline().decode("utf-8", "surrogateescape")
            return line.rstrip("\r\n") if line else None
        # The import enables line editing and a history in `input`.
        import readline  # noqa: F401

        try:
            return input(self._style(prompt, BOLD, zero_width=True))
        except EOFError:
            self.write("\n")
            return None

    def write(self, text: str) -> None:
        """Writes a part of an answer immediately."""
        sys.stdout.write(CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))
        sys.stdout.flush()

    def write_dim(self, text: str) -> None:
        """Writes a part of the model's reasoning, in a terminal only."""
        if self.interactive:
            sys.stdout.write(self._style(CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), DIM))
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Prints a note to standard error, in a terminal only."""
        if self.interactive:
            print(self._style(text, DIM), file=sys.stderr, flush=True)

    def _style(self, text: str, style: str, *, zero_width: bool = False) -> str:
        """Returns the text in a style. `zero_width`: the line editor does not count the style's characters as
        columns."""
        if not self._colour:
            return text
        start, end = (f"\x01{style}\x02", f"\x01{PLAIN}\x02") if zero_width else (style, PLAIN)
        return f"{start}{text}{end}"


class AttachedFile(Struct):
    """An image or a recording of a question."""

    name: str
    part: dict[str, object]
    """The part of a message in the API."""


class Turn(Struct):
    """A message of the chat."""

    role: str
    text: str
    files: tuple[AttachedFile, ...] = ()

    def build_message(self) -> dict[str, object]:
        """Returns the message of the API."""
        if not self.files:
            return {"role": self.role, "content": self.text}
        parts: list[object] = [file.part for file in self.files]
        return {"role": self.role, "content": [*parts, {"type": "text", "text": self.text}]}


def read_file(path: Path, command: str) -> AttachedFile:
    """Reads an image or a recording. `command`: `/image` or `/audio`. Raises OSError, or ValueError with a
    sentence."""
    formats = MEDIA_TYPES[command]
    if (kind := formats.get(path.suffix.lower())) is None:
        raise ValueError(f"{path.name} must end with {', '.join(formats)}")
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path.name} has more than {MAX_FILE_BYTES >> 20} MiB")
    data = base64.b64encode(content).decode()
    if command == "/image":
        url = {"url": f"data:image/{kind};base64,{data}"}
        return AttachedFile(path.name, {"type": "image_url", "image_url": url})
    return AttachedFile(path.name, {"type": "input_audio", "input_audio": {"data": data, "format": kind}})


class ChatHistory(Struct):
    """The model, the system message and the turns of one chat."""

    model: str
    system: str = ""
    max_tokens: int | None = None
    """Most tokens of an answer; None for the server's limit."""
    turns: list[Turn] = field(default_factory=list)
    """The oldest comes first; `user` and `assistant` alternate."""

    def list_turns(self) -> list[Turn]:
        """Returns the system message and the turns."""
        return [Turn("system", self.system), *self.turns] if self.system else self.turns

    def build_request(self, question: Turn) -> dict[str, object]:
        """Returns the request body for a question, without adding the question to the chat."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": [turn.build_message() for turn in (*self.list_turns(), question)],
        }
        return body if self.max_tokens is None else {**body, "max_tokens": self.max_tokens}

    def add_turn(self, question: Turn, answer: str) -> None:
        """Adds a question and its answer to the chat."""
        self.turns += [question, Turn("assistant", answer)]

    def save(self, path: Path) -> None:
        """Writes a new file: JSON for `.json`, otherwise Markdown. Raises OSError, also if the file
        exists."""
        if path.suffix == ".json":
            messages = [turn.build_message() for turn in self.list_turns()]
            text = json.dumps({"model": self.model, "messages": messages}, indent=2, ensure_ascii=False)
        else:
            parts = [f"# A chat with {self.model}"]
            for turn in self.list_turns():
                files = "".join(f"[{file.name}]\n\n" for file in turn.files)
                parts.append(f"**{turn.role}**\n\n{files}{turn.text}")
            text = "\n\n".join(parts) + "\n"
        with path.open("x", encoding="utf-8") as file:
            file.write(text)


class PartialAnswer(Struct):
    """An answer that is being received. Times are in monotonic seconds."""

    start_time: float
    text: str = ""
    first_token_at: float = 0.0
    finish_reason: str = ""
    usage: TokenUsage | None = None

    def format_figures(self) -> str:
        """Formats the number of tokens, the tokens per second and the time to the first token."""
        if self.usage is None or not self.first_token_at:
            return self.finish_reason
        duration, wait = time.monotonic() - self.first_token_at, self.first_token_at - self.start_time
        rate = f"{(self.usage.completion_tokens - 1) / duration:.0f} tokens/s, " if duration > 0 else ""
        limit_note = ", stopped at the token limit" if self.finish_reason == "length" else ""
        return f"{self.usage.completion_tokens} tokens, {rate}first after {wait:.2f} s{limit_note}"


class Chat:
    """The loop of a chat: each line is a command or a question."""

    def __init__(self, client: Client, conversation: ChatHistory, terminal: Terminal) -> None:
        self.conversation = conversation
        self._client = client
        self._terminal = terminal
        self._failed = False
        self._files: list[AttachedFile] = []
        """Images and recordings for the next question."""
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._set_system,
            "/model": self._switch_model,
            "/image": partial(self._attach, "/image"),
            "/audio": partial(self._attach, "/audio"),
            "/new": self._clear_history,
            "/save": self._save_history,
            "/help": self._print_help,
            "/quit": self._leave,
        }

    def run_loop(self) -> int:
        """Reads lines until the input ends or the user leaves.

        Returns 1 if a question from a pipe failed. Raises KeyboardInterrupt after two consecutive Ctrl-C.
        """
        interrupted = False
        while True:
            try:
                line = self._terminal.read("> ")
                if line is None:
                    break
                interrupted = False
                self._handle_line(line.strip())
            except KeyboardInterrupt:
                self._terminal.write("\n")
                if interrupted or not self._terminal.interactive:
                    raise
                interrupted = True
                self._terminal.note("(Ctrl-C again or Ctrl-D leaves)")
            except LeaveChat:
                break
        return FAILED if self._failed and not self._terminal.interactive else 0

    def _handle_line(self, line: str) -> None:
        """Handles one input line: a command or a message to the model."""
        if not is_valid_unicode(line):
            self._fail(f"this is not UTF-8, and was not sent: {escape_surrogates(line)}")
        elif line.startswith("/") and not line.startswith("//"):
            name, _, rest = line.partition(" ")
            self._commands.get(name, self._reject_command)(rest.strip())
        elif line:
            self._ask(line.removeprefix("/") if line.startswith("//") else line)

    def _ask(self, text: str) -> None:
        """Streams the answer to a question.

        The history keeps an answer that Ctrl-C interrupted, but not a failed one. The files go with this
        question only, so a file that the server refuses does not fail the next one too.
        """
        question = Turn("user", text, tuple(self._files))
        self._files.clear()
        answer = PartialAnswer(start_time=time.monotonic())
        try:
            with closing(self._client.stream_chat(self.conversation.build_request(question))) as chunks:
                for chunk in chunks:
                    if (chunk.text or chunk.reasoning) and not answer.first_token_at:
                        answer.first_token_at = time.monotonic()
                    # Before the text is displayed, so that the history contains all displayed text.
                    answer.text += chunk.text
                    answer.finish_reason = chunk.finish_reason or answer.finish_reason
                    answer.usage = chunk.usage or answer.usage
                    self._terminal.write_dim(chunk.reasoning)
                    self._terminal.write(chunk.text)
        except CallFailed as problem:
            self._terminal.write("\n" if answer.text else "")
            self._fail(problem)
            return
        except KeyboardInterrupt:
            if answer.text:
                self.conversation.add_turn(question, answer.text)
            raise
        self.conversation.add_turn(question, answer.text)
        self._terminal.write("\n")
        self._terminal.note(answer.format_figures())

    # --- commands -------------------------------------------------------------------------------------------

    def _set_system(self, text: str) -> None:
        self.conversation.system = text
        self._terminal.note("the model has new instructions" if text else "the model has no instructions")

    def _switch_model(self, name: str) -> None:
        try:
            if name:
                self.conversation.model = self._client.require_chat_model(name)
            current, names = self.conversation.model, self._client.list_models()
            for listed_name in names if current in names else [*names, current]:  # the list has no aliases
                suffix = " (current)" if listed_name == current else ""
                self._terminal.write(f"{listed_name}{suffix}\n")
        except CallFailed as problem:
            self._fail(problem)

    def _attach(self, command: str, name: str) -> None:
        if not name:
            self._fail(f"name the file: {command} FILE")
            return
        try:
            self._files.append(read_file(Path(name).expanduser(), command))
            self._terminal.note(f"{self._files[-1].name} goes with your next question")
        except OSError as problem:
            self._fail(f"cannot read {name}: {problem.strerror}")
        except ValueError as problem:
            self._fail(str(problem))

    def _clear_history(self, _: str) -> None:
        self.conversation.turns.clear()
        self._files.clear()
        self._terminal.note("started a new conversation")

    def _save_history(self, name: str) -> None:
        if not name:
            self._fail("name the file: /save chat.md")
            return
        try:
            self.conversation.save(Path(name).expanduser())
            self._terminal.note(f"written to {name}")
        except FileExistsError:
            self._fail(f"{name} exists already; name a new file")
        except OSError as problem:
            self._fail(f"cannot write {name}: {problem.strerror}")

    def _print_help(self, _: str) -> None:
        self._terminal.write(f"{HELP}\n")

    def _leave(self, _: str) -> None:
        raise LeaveChat

    def _reject_command(self, _: str) -> None:
        """Prints that the command does not exist, with the names of all commands."""
        self._fail(f"there is no such command; there are: {' '.join(self._commands)}")

    def _fail(self, problem: str | CallFailed) -> None:
        """Prints a problem with advice, and records that the chat had one, for the exit status."""
        self._failed = True
        if isinstance(problem, CallFailed):
            advice = _advise(problem)
            problem = f"{problem.message.removesuffix('.')}. {advice}" if advice else problem.message
        note(problem)
