"""The terminal of a chat: a line-edited prompt, or lines of a pipe, and text that cannot command it.

Writes to standard output what was answered and to standard error what is said about it.
"""

import os
import re
import sys

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but tab and newline: in an answer they could move the cursor or set the clipboard."""

DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"


def shown(text: str) -> str:
    """A text on one line that commands no terminal: what is not printable is escaped, as in `\\x1b`."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class Terminal:
    """Standard input, output and error of this process."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._colour = self.interactive and "NO_COLOR" not in os.environ

    def read(self, prompt: str) -> str | None:
        """The next line that is typed; None after Ctrl-D or at the end of the input. Raises KeyboardInterrupt
        at Ctrl-C."""
        if not self.interactive:
            # Whatever the locale: what is no UTF-8 comes as half surrogate pairs, which the chat refuses.
            line = sys.stdin.buffer.readline().decode("utf-8", "surrogateescape")
            return line.rstrip("\r\n") if line else None
        # Importing it is what gives `input` its line editing and, while this process lives, its history.
        import readline  # noqa: F401

        try:
            return input(self._around(prompt, BOLD, hidden=True))
        except EOFError:
            self.write("\n")
            return None

    def write(self, text: str) -> None:
        """Part of an answer, as soon as it is there."""
        sys.stdout.write(CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))
        sys.stdout.flush()

    def write_dim(self, text: str) -> None:
        """Part of what a model thinks before it answers; only people see it."""
        if self.interactive:
            sys.stdout.write(self._around(CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), DIM))
            sys.stdout.flush()

    def say(self, text: str) -> None:
        """What a command of the chat was asked for."""
        self.write(text + "\n")

    def note(self, text: str) -> None:
        """Something about the answer, for people."""
        if self.interactive:
            print(self._around(text, DIM), file=sys.stderr, flush=True)

    def complain(self, text: str) -> None:
        """Something that went wrong."""
        print(f"antiphon: {text}", file=sys.stderr, flush=True)

    def _around(self, text: str, style: str, *, hidden: bool = False) -> str:
        """The text in a style; `hidden` tells the line editor that the style takes no columns."""
        if not self._colour:
            return text
        first, last = (f"\x01{style}\x02", f"\x01{PLAIN}\x02") if hidden else (style, PLAIN)
        return f"{first}{text}{last}"
