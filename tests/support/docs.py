"""The fenced blocks of README and the pages, and which of their shell commands can be run here.

What serves until it is stopped, installs, or needs the internet is not run: the command line's own parser,
or the Makefile, says whether it exists. Whatever is neither is an error, so that no new command escapes.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPOKEN = re.compile(r"`((?:\.venv/bin/)?antiphon [^`]+|make [a-z][^`]*)`")
SUBSTITUTION = re.compile(r"\$\([^)]*\)")
ASSIGNMENT = re.compile(r"^[A-Z_]+=")

RUN = {"curl", "antiphon", "export", "."}
OUTSIDE = {"sudo", "pip", "hf", "git", "asciinema", "docker", "kubectl", "mkdir", "pg_dump", "pg_restore"}
OUTSIDE |= {"ray", "serve"}
"""Programs of others that install or need the internet."""

HERE = {"chat", "doctor", "bench", "config", "version", "models list"}
"""Commands of `antiphon` that end by themselves and need no internet."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """Without the variables that are set before it."""
        words = shlex.split(SUBSTITUTION.sub("x", self.text), comments=True)
        while words and ASSIGNMENT.match(words[0]):
            words.pop(0)
        return words

    @property
    def program(self) -> str:
        return Path(self.words[0]).name if self.words[0] != "." else "."

    @property
    def asked(self) -> str:
        """The subcommand of `antiphon`."""
        words = self.words[1:3]
        return " ".join(words) if words[:1] == ["models"] else words[0]

    @property
    def runs(self) -> bool:
        """Whether it can be run here."""
        if self.program == "antiphon":
            return self.asked in HERE and "hf:" not in self.text and ".gguf" not in self.text
        return self.program in RUN


def blocks(page: Path, *languages: str) -> list[str]:
    """The page's code in one of these languages."""
    found = FENCE.findall(page.read_text("utf-8"))
    return [code for language, code in found if language in languages]


def commands() -> Iterator[Command]:
    """Every line of every shell block; a backslash joins lines."""
    for page in PAGES:
        for block in blocks(page, "sh", "bash", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield Command(str(page.relative_to(ROOT)), line.removeprefix("$ "))


def spoken() -> Iterator[Command]:
    """Commands within sentences, which are never run."""
    for page in PAGES:
        text = FENCE.sub("", page.read_text("utf-8"))
        for found in SPOKEN.findall(text):
            yield Command(str(page.relative_to(ROOT)), " ".join(found.split()))
