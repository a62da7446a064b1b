"""`antiphon chat`: a conversation in the terminal, with a running server or with one that it starts.

Ctrl-C ends an answer by closing its connection, which frees the server's sequence. The conversation is kept
in memory until the chat ends; only /save writes it to a file.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.cli.admin_client import find_operator_file, find_server, read_operator_key
from antiphon.cli.client import Client, TokenUsage
from antiphon.cli.local_servers import start_server
from antiphon.cli.model_files import fetch_named
from antiphon.cli.output import (
    FAILED,
    KEY_VARIABLE,
    UNAUTHORIZED,
    CallFailed,
    NobodyThere,
    Problem,
    note,
    report_errors,
)
from antiphon.errors import SettingsError
from antiphon.rendering.template.shield import escape_surrogates, is_whole

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tab and newline. In an answer they could move the cursor or set the clipboard."""

DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"

HELP = """\
/system TEXT   give the model instructions; without TEXT, take them back
/model NAME    ask another model; without NAME, list them
/new           forget what was said
/save FILE     write the chat to a new file: JSON for .json, else Markdown
/help          this list
/quit          leave (or Ctrl-D)
Ctrl-C stops the answer; a second one leaves. A message that begins with / is written with //."""


class LeaveChat(Exception):
    """The user wants to leave the chat."""


def run(url: str | None, model: str | None, system: str | None, max_tokens: int | None = None) -> int:
    """Runs the chat until the user leaves; returns the exit status. `max_tokens`: the limit of each
    answer."""
    terminal = Terminal()
    with report_errors(_advise), ExitStack() as stack:
        if system and not is_whole(system):
            raise SettingsError("--system is not UTF-8")
        client, name = _connect(url, model, terminal, stack)
        chosen = client.require_generating(name) if name else client.find_generating()
        terminal.note(f"{chosen} at {client.url}; /help lists the commands")
        return Chat(client, ChatHistory(chosen, system or "", max_tokens), terminal).talk()


def _connect(
    url: str | None, model: str | None, terminal: "Terminal", stack: ExitStack
) -> tuple[Client, str | None]:
    """Returns the address of a server that answers, and the model's name: the server at the address, or one
    that runs as long as the stack. A new server gets the model, which is fetched first. Raises CallFailed and
    AntiphonError."""
    address, key = find_server(url, may_be_foreign=True)
    client = Client(address, key)
    try:
        client.list_models()
    except NobodyThere:
        if url:
            raise
    else:
        return client, model
    terminal.note(f"nothing answers at {client.url}: starting a server for this chat")
    if model:
        fetch_named(model)
    own = stack.enter_context(start_server(["--model", model] if model else []))
    # With keys, the server's start has written the operator's key on this machine.
    return Client(own, key or read_operator_key()), None


def _advise(problem: Problem) -> str:
    """Returns advice about the error, where there is any."""
    if isinstance(problem, CallFailed) and problem.status == UNAUTHORIZED:
        hint = f"; the operator's is in {find_operator_file()}" if read_operator_key() else ""
        return f"Set {KEY_VARIABLE} to a key of the server{hint}."
    is_long = isinstance(problem, CallFailed) and problem.code == "context_length_exceeded"
    return "/new starts over." if is_long else ""


class Terminal:
    """Standard input, output and error of this process."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._colour = self.interactive and "NO_COLOR" not in os.environ

    def read(self, prompt: str) -> str | None:
        """Reads a line; returns None after Ctrl-D or at the end of the input. Raises KeyboardInterrupt at
        Ctrl-C."""
        if not self.interactive:
            # Reads UTF-8 whatever the locale is. Invalid bytes become surrogates, which the chat refuses.
            line = sys.stdin.buffer.readline().decode("utf-8", "surrogateescape")
            return line.rstrip("\r\n") if line else None
        # The import alone gives `input` line editing and, for this process, a history.
        import readline  # noqa: F401

        try:
            return input(self._style(prompt, BOLD, hidden=True))
        except EOFError:
            self.write("\n")
            return None

    def write(self, text: str) -> None:
        """Writes a part of an answer at once."""
        sys.stdout.write(CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))
        sys.stdout.flush()

    def write_dim(self, text: str) -> None:
        """Writes a part of the model's reasoning. It is only displayed."""
        if self.interactive:
            sys.stdout.write(self._style(CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), DIM))
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Writes a note about the answer for people."""
        if self.interactive:
            print(self._style(text, DIM), file=sys.stderr, flush=True)

    def _style(self, text: str, style: str, *, hidden: bool = False) -> str:
        """Returns the text in a style. `hidden`: tells the line editor that the style takes no columns."""
        if not self._colour:
            return text
        first, last = (f"\x01{style}\x02", f"\x01{PLAIN}\x02") if hidden else (style, PLAIN)
        return f"{first}{text}{last}"


@dataclass(slots=True)
class ChatHistory:
    """The model, the system text and the turns of one chat."""

    model: str
    system: str = ""
    max_tokens: int | None = None
    """Most tokens of an answer; None leaves the limit to the server."""
    turns: list[tuple[str, str]] = field(default_factory=list)
    """Turns as (role, text), oldest first: `user` and `assistant` alternate."""

    def messages(self) -> list[dict[str, str]]:
        """Returns the turns as messages of the API."""
        system = [("system", self.system)] if self.system else []
        return [{"role": role, "content": text} for role, text in [*system, *self.turns]]

    def ask(self, text: str) -> dict[str, object]:
        """Returns the body of the next request. `add_turn` must add the question to the chat afterwards."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": [*self.messages(), {"role": "user", "content": text}],
        }
        return body if self.max_tokens is None else {**body, "max_tokens": self.max_tokens}

    def add_turn(self, question: str, answer: str) -> None:
        """Adds a question and its answer to the chat."""
        self.turns += [("user", question), ("assistant", answer)]

    def save(self, path: Path) -> None:
        """Writes a new file: JSON for `.json`, otherwise Markdown. Raises OSError, also if the file
        exists."""
        with path.open("x", encoding="utf-8") as file:
            file.write(self._as_json() if path.suffix == ".json" else self._as_markdown())

    def _as_json(self) -> str:
        return json.dumps({"model": self.model, "messages": self.messages()}, indent=2, ensure_ascii=False)

    def _as_markdown(self) -> str:
        parts = [f"# A chat with {self.model}"]
        parts += [f"**{message['role']}**\n\n{message['content']}" for message in self.messages()]
        return "\n\n".join(parts) + "\n"


@dataclass(slots=True)
class TypedAnswer:
    """An answer while it arrives."""

    began: float
    text: str = ""
    first: float = 0.0
    finish: str = ""
    usage: TokenUsage | None = None

    def figures(self) -> str:
        """Returns the answer's figures as a text: tokens, tokens per second, and the time to the first
        one."""
        if self.usage is None or not self.first:
            return self.finish
        took, wait = time.monotonic() - self.first, self.first - self.began
        rate = f"{(self.usage.completion_tokens - 1) / took:.0f} tokens/s, " if took > 0 else ""
        cut = ", cut at the limit of tokens" if self.finish == "length" else ""
        return f"{self.usage.completion_tokens} tokens, {rate}first after {wait:.2f} s{cut}"


class Chat:
    """The loop of a chat: each line is a command or a question."""

    def __init__(self, client: Client, conversation: ChatHistory, terminal: Terminal) -> None:
        self.conversation = conversation
        self._client = client
        self._terminal = terminal
        self._failed = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._system,
            "/model": self._model,
            "/new": self._new,
            "/save": self._save,
            "/help": self._help,
            "/quit": self._quit,
        }

    def talk(self) -> int:
        """Runs until the input ends or the user leaves. Returns 1 if a question from a pipe failed. Raises
        KeyboardInterrupt at the second Ctrl-C in a row."""
        interrupted = False
        while True:
            try:
                line = self._terminal.read("> ")
                if line is None:
                    break
                interrupted = False
                self._take(line.strip())
            except KeyboardInterrupt:
                self._terminal.write("\n")
                if interrupted or not self._terminal.interactive:
                    raise
                interrupted = True
                self._terminal.note("(Ctrl-C again or Ctrl-D leaves)")
            except LeaveChat:
                break
        return FAILED if self._failed and not self._terminal.interactive else 0

    def _take(self, line: str) -> None:
        """Handles one line of the user: a command, or a message to the model."""
        if not is_whole(line):
            self._fail(f"this is not UTF-8, and was not sent: {escape_surrogates(line)}")
        elif line.startswith("/") and not line.startswith("//"):
            name, _, rest = line.partition(" ")
            self._commands.get(name, self._reject_command)(rest.strip())
        elif line:
            self._ask(line.removeprefix("/") if line.startswith("//") else line)

    def _ask(self, question: str) -> None:
        """Streams the answer. An answer that Ctrl-C ends is kept up to there; a failed one is not kept."""
        answer = TypedAnswer(began=time.monotonic())
        try:
            self._receive(self.conversation.ask(question), answer)
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
        self._terminal.note(answer.figures())

    def _receive(self, body: dict[str, object], answer: TypedAnswer) -> None:
        with closing(self._client.stream_chat(body)) as pieces:
            for piece in pieces:
                if (piece.text or piece.reasoning) and not answer.first:
                    answer.first = time.monotonic()
                answer.text += piece.text  # first, so that the chat contains all that was displayed
                answer.finish = piece.finish or answer.finish
                answer.usage = piece.usage or answer.usage
                self._terminal.write_dim(piece.reasoning)
                self._terminal.write(piece.text)

    # --- commands -------------------------------------------------------------------------------------------

    def _system(self, text: str) -> None:
        self.conversation.system = text
        self._terminal.note("the model has new instructions" if text else "the model has no instructions")

    def _model(self, name: str) -> None:
        try:
            if name:
                self.conversation.model = self._client.require_generating(name)
            current, names = self.conversation.model, self._client.list_models()
            for each in names if current in names else [*names, current]:  # the list contains no aliases
                self._terminal.write(f"{each} (asked now)\n" if each == current else f"{each}\n")
        except CallFailed as problem:
            self._fail(problem)

    def _new(self, _: str) -> None:
        self.conversation.turns.clear()
        self._terminal.note("forgotten")

    def _save(self, name: str) -> None:
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

    def _help(self, _: str) -> None:
        self._terminal.write(f"{HELP}\n")

    def _quit(self, _: str) -> None:
        raise LeaveChat

    def _reject_command(self, _: str) -> None:
        """Prints that there is no such command."""
        self._fail(f"there is no such command; there are: {' '.join(self._commands)}")

    def _fail(self, problem: str | CallFailed) -> None:
        """Prints a problem with advice, and notes that the chat had one."""
        self._failed = True
        if isinstance(problem, CallFailed):
            advice = _advise(problem)
            problem = f"{problem.message.removesuffix('.')}. {advice}" if advice else problem.message
        note(problem)
