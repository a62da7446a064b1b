"""What ends a command: one line on standard error, and a status."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from antiphon.cli.output import note
from antiphon.errors import AntiphonError

FAILED, INTERRUPTED = 1, 130
"""Exit statuses; the second is what shells give what Ctrl-C ended."""

UNAUTHORIZED, FORBIDDEN = 401, 403
KEY_VARIABLE = "ANTIPHON_API_KEY"


class CallFailed(Exception):
    """The request was refused, or the connection failed; the message is for people."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class NobodyThere(CallFailed):
    """Nothing listens at the address."""


Problem = CallFailed | AntiphonError
Advise = Callable[[Problem], str]
"""What to add to the message of an error; empty for nothing."""


def advise_key(problem: Problem) -> str:
    """Where to put the key that the server wants."""
    is_refused = isinstance(problem, CallFailed) and problem.status == UNAUTHORIZED
    return f"Set {KEY_VARIABLE} to the server's key." if is_refused else ""


@contextmanager
def report_errors(advise: Advise = advise_key, when_interrupted: str = "") -> Iterator[None]:
    """Ends the command where the block fails or is interrupted."""
    try:
        yield
    except (CallFailed, AntiphonError) as problem:
        advice = advise(problem)
        note(f"{problem.message.removesuffix('.')}. {advice}" if advice else problem.message)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        if when_interrupted:
            note(when_interrupted)
        raise typer.Exit(INTERRUPTED) from None
