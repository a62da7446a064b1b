"""`antiphon chat`: a conversation in the terminal, with a running server or with one that it starts.

Ctrl-C ends the answer by closing its connection, which frees the server's sequence. What was said is kept for
as long as the chat lasts, and in a file only with /save.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from antiphon.cli import operators
from antiphon.cli.choosing import first, named
from antiphon.cli.client import CallFailed, Client, NobodyThere, Usage
from antiphon.cli.conversation import Conversation
from antiphon.cli.fetching import here
from antiphon.cli.own_server import own_server
from antiphon.cli.terminal import Terminal, shown
from antiphon.cli.where import KEY_VARIABLE, where
from antiphon.errors import AntiphonError
from antiphon.rendering.characters import escaped, is_whole

HELP = """\
/system TEXT   give the model instructions; without TEXT, take them back
/model NAME    ask another model; without NAME, list them
/new           forget what was said
/save FILE     write the chat to a new file: JSON for .json, else Markdown
/help          this list
/quit          leave (or Ctrl-D)
Ctrl-C stops the answer; a second one leaves. A message that begins with / is written with //."""

UNAUTHORIZED = 401
INTERRUPTED = 130
"""Exit status after Ctrl-C, by custom."""


class Leave(Exception):
    """The user wants to go."""


def run(url: str | None, model: str | None, system: str | None, max_tokens: int | None = None) -> int:
    """Talks until the user leaves; returns the process's exit status. `max_tokens`: of each answer."""
    terminal = Terminal()
    if system and not is_whole(system):
        terminal.complain("--system is not UTF-8")
        return 1
    with ExitStack() as stack:
        try:
            client, asked = _reached(url, model, terminal, stack)
            conversation = Conversation(
                named(client, asked) if asked else first(client), system or "", max_tokens
            )
            terminal.note(f"{conversation.model} at {client.url}; /help lists the commands")
            return Chat(client, conversation, terminal).talk()
        except CallFailed as problem:
            terminal.complain(_advised(problem))
            return 1
        except AntiphonError as problem:
            terminal.complain(problem.message)
            return 1
        except KeyboardInterrupt:
            return INTERRUPTED


def _reached(
    url: str | None, model: str | None, terminal: Terminal, stack: ExitStack
) -> tuple[Client, str | None]:
    """A server that answers, and the name to ask for: the server at the address, or one that lives as long as
    the stack and was told the model, which is fetched before. Raises CallFailed and AntiphonError."""
    address, key = where(url)
    client = Client(address, key)
    try:
        client.models()
    except NobodyThere:
        if url:
            raise
    else:
        return client, model
    terminal.note(f"nothing answers at {client.url}: starting a server for this chat")
    if model:
        here(model)
    own = stack.enter_context(own_server(["--model", model] if model else []))
    # Where keys are on, the start of that server has left the operator's on this machine.
    return Client(own, key or operators.kept_key()), None


def _advised(problem: CallFailed) -> str:
    """The message, and what to do about it where that is known."""
    if problem.status == UNAUTHORIZED:
        return f"{problem.message.rstrip('.')}. Set {KEY_VARIABLE} to a key of the server{_where_it_lies()}."
    if problem.code == "context_length_exceeded":
        return f"{problem.message.rstrip('.')}. /new starts over."
    return problem.message


def _where_it_lies() -> str:
    """Where on this machine the operator's key is, if there is one."""
    return f"; the operator's is in {operators.key_file()}" if operators.kept_key() else ""


@dataclass(slots=True)
class Answer:
    """An answer as it arrives."""

    began: float
    text: str = ""
    first: float = 0.0
    finish: str = ""
    usage: Usage | None = None

    def figures(self) -> str:
        """What people want to know of it: tokens, their rate, the wait for the first."""
        if self.usage is None or not self.first:
            return self.finish
        took, wait = time.monotonic() - self.first, self.first - self.began
        rate = f"{(self.usage.completion - 1) / took:.0f} tokens/s, " if took > 0 else ""
        cut = ", cut at the limit of tokens" if self.finish == "length" else ""
        return f"{self.usage.completion} tokens, {rate}first after {wait:.2f} s{cut}"


class Chat:
    """The loop: a line is a command or a question."""

    def __init__(self, client: Client, conversation: Conversation, terminal: Terminal) -> None:
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
        """Until the input ends, or the user leaves; 1 when a pipe's question failed. Raises KeyboardInterrupt
        at the second Ctrl-C in a row."""
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
            except Leave:
                break
        return 1 if self._failed and not self._terminal.interactive else 0

    def _take(self, line: str) -> None:
        if not is_whole(line):
            self._fail(f"this is not UTF-8, and was not sent: {shown(escaped(line))}")
        elif line.startswith("/") and not line.startswith("//"):
            name, _, rest = line.partition(" ")
            self._commands.get(name, self._unknown)(rest.strip())
        elif line:
            self._ask(line.removeprefix("/") if line.startswith("//") else line)

    def _ask(self, question: str) -> None:
        """Streams the answer. One that Ctrl-C cut is kept as far as it went; one that failed is not."""
        answer = Answer(began=time.monotonic())
        try:
            self._receive(self.conversation.ask(question), answer)
        except CallFailed as problem:
            self._failed = True
            self._terminal.write("\n" if answer.text else "")
            self._terminal.complain(_advised(problem))
            return
        except KeyboardInterrupt:
            if answer.text:
                self.conversation.answered(question, answer.text)
            raise
        self.conversation.answered(question, answer.text)
        self._terminal.write("\n")
        self._terminal.note(answer.figures())

    def _receive(self, body: dict[str, object], answer: Answer) -> None:
        with closing(self._client.chat(body)) as pieces:
            for piece in pieces:
                if (piece.text or piece.reasoning) and not answer.first:
                    answer.first = time.monotonic()
                answer.text += piece.text  # before it is shown, so that what was seen is remembered
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
                self.conversation.model = named(self._client, name)
            asked, names = self.conversation.model, self._client.models()
            shown = names if asked in names else [*names, asked]  # an alias is not listed
            self._terminal.say("\n".join(f"{each} (asked now)" if each == asked else each for each in shown))
        except CallFailed as problem:
            self._fail(_advised(problem))

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
        self._terminal.say(HELP)

    def _quit(self, _: str) -> None:
        raise Leave

    def _unknown(self, _: str) -> None:
        self._fail(f"there is no such command; there are: {' '.join(self._commands)}")

    def _fail(self, text: str) -> None:
        self._failed = True
        self._terminal.complain(text)
