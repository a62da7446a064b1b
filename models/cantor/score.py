"""Score a served cantor on the held-out set with what a bare request gets; prints counts and ids, no texts.

`python -m models.cantor.score --serve` starts `antiphon serve` on a free port, asks it and ends it (`make
score` does this in the repository's own environment); `--serve FILE` has it serve that file. `--url`
asks any OpenAI-compatible server, and `--gguf FILE` the one that the xllamacpp package brings (see
requirements.txt). Where a server refuses `tools`, the chat template is rendered here and sent to
/completions. Besides right answers it counts, over all rows, answers that end by themselves within 128
tokens, that hold a four-gram three times, and words that the corpus knows.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.cantor import recipe
from models.cantor.corpus import training
from models.cantor.corpus.exclude import words_of

HERE = Path(__file__).parent
TEMPLATE = HERE / "template.jinja"
READ = 60_000  # documents of each leg
MOST_TOKENS = 128  # within which an answer has to end
ROOM = 512  # tokens that a rendered prompt may make, since /completions alone would stop after 16
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
LISTENS = re.compile(r"Antiphon listens on (http://\S+)")
Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the text, calls as (name, arguments), completion tokens and the finish reason."""

    text: str
    calls: tuple[tuple[str, object], ...]
    tokens: int
    finish: str

    @property
    def ended(self) -> bool:
        """Whether it ended by itself in time."""
        return self.finish in ("stop", "tool_calls") and self.tokens <= MOST_TOKENS

    @property
    def repeats(self) -> bool:
        """Whether a run of four words comes three times."""
        words = self.text.split()
        return any(
            count > 2 for count in Counter(zip(*(words[at:] for at in range(4)), strict=False)).values()
        )


class Server:
    """An OpenAI-compatible server at a base URL that ends in /v1."""

    def __init__(self, url: str, model: str, *, rendered_tools: bool = False) -> None:
        self.url, self.model, self.rendered_tools = url.rstrip("/"), model, rendered_tools

    def answer(self, row: Json) -> Answer:
        """The answer to a held-out row's messages."""
        shown = {name: row[name] for name in ("messages", "tools") if name in row}
        reply = self._render(shown) if self.rendered_tools and "tools" in shown else self._chat(shown)
        choice = reply["choices"][0]
        message = choice.get("message") or {}
        text = choice.get("text") or message.get("content") or ""
        structured = [call["function"] for call in message.get("tool_calls") or []]
        calls = [(call["name"], _parsed(call["arguments"])) for call in structured] or _calls_in(text)
        return Answer(text, tuple(calls), reply["usage"]["completion_tokens"], choice["finish_reason"])

    def _chat(self, shown: Json) -> dict[str, Any]:
        try:
            return self._post("/chat/completions", shown)
        except urllib.error.HTTPError as refusal:
            if refusal.code != 400 or "tools" not in shown:
                raise
        return self._render(shown)

    def _render(self, shown: Json) -> dict[str, Any]:
        return self._post("/completions", {"prompt": render(shown), "max_tokens": ROOM})

    def _post(self, path: str, fields: Json) -> dict[str, Any]:
        body = json.dumps({"model": self.model, **fields}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            reply: dict[str, Any] = json.load(response)
            return reply


def render(shown: Json) -> str:
    """The prompt that the chat template makes, without BOS, which a raw prompt gets from the server."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8").rstrip("\n"))
    return template.render(**shown, bos_token="", add_generation_prompt=True)


def _parsed(arguments: object) -> object:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return None


def _calls_in(text: str) -> list[tuple[str, object]]:
    found = [_parsed(body) for body in CALL.findall(text)]
    return [
        (call["name"], call.get("arguments")) for call in found if isinstance(call, dict) and "name" in call
    ]


def is_right(row: Json, answer: Answer) -> bool:
    """Whether a row accepts an answer: by its pattern, or by name and parsed arguments of the one call."""
    if "accept" in row:
        return re.search(str(row["accept"]), answer.text, re.IGNORECASE | re.DOTALL) is not None
    return answer.calls == ((row["name"], row["arguments"]),)


def slip(row: Json, answer: Answer) -> str:
    """What is wrong in an answer to a row that wants one call."""
    if len(answer.calls) != 1:
        return "several calls" if answer.calls else "no call"
    return "another tool" if answer.calls[0][0] != row["name"] else "other arguments"


def known_words() -> frozenset[str]:
    """The words of the corpus: of as many documents of each leg as hold all but invented ones."""
    words: set[str] = set()
    for document in training(at_most=READ):
        words.update(words_of(document.lead + document.text))
        for turn in document.turns:
            words.update(words_of(turn.content))
    return frozenset(words)


def score(server: Server, folder: Path) -> None:
    """Ask everything and print the figures."""
    answers: list[Answer] = []
    for name in ("questions", "new_questions", "tools", "others"):
        rows = [
            json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        wrong: list[str] = []
        slips: Counter[str] = Counter()
        for row in rows:
            answers.append(server.answer(row))
            if not is_right(row, answers[-1]):
                wrong.append(row["id"])
                slips.update([slip(row, answers[-1])] if "name" in row else [])
        print(f"{name}: {len(rows) - len(wrong)} of {len(rows)} right; wrong: {' '.join(wrong)}", flush=True)
        if slips:
            print(f"  of the wrong calls {', '.join(f'{count} {what}' for what, count in slips.items())}")
    words = [word for answer in answers for word in words_of(answer.text)]
    known = known_words()
    print(f"ended within {MOST_TOKENS} tokens: {sum(answer.ended for answer in answers)} of {len(answers)}")
    print(f"a four-gram three times: {sum(answer.repeats for answer in answers)}")
    print(f"words known to the corpus: {sum(word in known for word in words)} of {len(words)}")


@contextmanager
def antiphon(model: str) -> Iterator[str]:
    """`antiphon serve` on a free port, with its own settings alone; gives the URL and ends the server."""
    command = [sys.executable, "-m", "antiphon", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--log-level", "warning"]
    command += ["--model", f"cantor={model}"] if model else []
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    with TemporaryDirectory() as home:
        served = subprocess.Popen(
            command, cwd=home, env=plain | {"ANTIPHON_HOME": home}, stdout=subprocess.PIPE, text=True
        )
        try:
            assert served.stdout is not None
            found = next((match for match in map(LISTENS.search, served.stdout) if match), None)
            if found is None:
                raise SystemExit("`antiphon serve` did not start; run it alone to see why.")
            Thread(target=served.stdout.read, daemon=True).start()
            yield f"{found[1]}/v1"
        finally:
            served.terminate()
            served.wait(30)


def start(path: Path) -> tuple[object, str]:
    """xllamacpp's own server on a file; the object must be kept as long as it is to answer."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.use_jinja = recipe.CONTEXT, 1, True
    params.sampling.temp, params.sampling.top_p = recipe.TEMPERATURE, recipe.TOP_P
    server = xllamacpp.Server(params)
    return server, f"{server.listening_address}/v1"


def main() -> None:
    """Read the command line, score."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="base URL of a server, with /v1")
    where.add_argument("--gguf", type=Path, help="a file to serve with xllamacpp and score")
    where.add_argument(
        "--serve",
        nargs="?",
        const="",
        metavar="FILE",
        help="start `antiphon serve` on a file, or its demo model",
    )
    parser.add_argument("--model", default="cantor")
    parser.add_argument("--heldout", type=Path, default=HERE / "heldout")
    arguments = parser.parse_args()
    if arguments.serve is not None:
        with antiphon(arguments.serve) as url:
            score(Server(url, arguments.model), arguments.heldout)
        return
    kept, url = start(arguments.gguf) if arguments.gguf else (None, arguments.url)
    # xllamacpp's server would force a call into shape by a grammar; what counts is what the model writes.
    score(Server(url, arguments.model, rendered_tools=kept is not None), arguments.heldout)


if __name__ == "__main__":
    main()
