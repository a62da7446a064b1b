"""The code blocks of README and the pages, and the shell commands that tests can run.

Tests do not run commands that install, need the internet, or serve until they are stopped. For these they
check that the command line's parser or the Makefile knows the command. Any other command is an error.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE_COMMAND = re.compile(r"`((?:\.venv/bin/)?antiphon [^`]+|make [a-z][^`]*)`")
SUBSTITUTION = re.compile(r"\$\([^)]*\)")
ASSIGNMENT = re.compile(r"^[A-Z_]+=")

RUNNABLE_PROGRAMS = {"curl", "antiphon", "export", "."}
EXTERNAL_PROGRAMS = {
    "sudo",
    "pip",
    "pipx",
    "hf",
    "git",
    "asciinema",
    "docker",
    "kubectl",
    "claude",
    "codex",
    "opencode",
    "mkdir",
    "chmod",
    "sed",
    "pg_dump",
    "pg_restore",
}
EXTERNAL_PROGRAMS |= {"ray", "serve"}
"""Programs that install, or that need the internet."""

SAFE_SUBCOMMANDS = {"chat", "doctor", "bench", "config", "version", "models list"}
"""Subcommands of `antiphon` that end and need no internet."""


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command of a page."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """The command's words without leading variable assignments."""
        words = shlex.split(SUBSTITUTION.sub("x", self.text), comments=True)
        while words and ASSIGNMENT.match(words[0]):
            words.pop(0)
        return words

    @property
    def program(self) -> str:
        return Path(self.words[0]).name if self.words[0] != "." else "."

    @property
    def subcommand(self) -> str:
        """The subcommand of `antiphon`."""
        words = self.words[1:3]
        return " ".join(words) if words[:1] == ["models"] else words[0]

    @property
    def is_runnable(self) -> bool:
        """Whether tests can run the command."""
        if self.program == "antiphon":
            return self.subcommand in SAFE_SUBCOMMANDS and "hf:" not in self.text and ".gguf" not in self.text
        return self.program in RUNNABLE_PROGRAMS


def list_code_blocks(page: Path, *languages: str) -> list[str]:
    """Returns the page's code blocks in these languages."""
    blocks = FENCE.findall(page.read_text("utf-8"))
    return [code for language, code in blocks if language in languages]


def list_commands() -> Iterator[Command]:
    """Yields the commands of all shell blocks; a backslash joins lines."""
    for page in PAGES:
        for block in list_code_blocks(page, "sh", "bash", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield Command(str(page.relative_to(ROOT)), line.removeprefix("$ "))


def list_inline_commands() -> Iterator[Command]:
    """Yields the commands in sentences, also of the changelog. Tests do not run them."""
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        text = FENCE.sub("", page.read_text("utf-8"))
        for command in INLINE_COMMAND.findall(text):
            yield Command(str(page.relative_to(ROOT)), " ".join(command.split()))
