"""Scores a served cantor on the held-out set, without sampling parameters; prints counts and ids, no texts.

`python -m models.cantor.score --serve` starts `antiphon serve` on a free port, scores it and stops it. `make
score` does the same in the repository's own environment. `--serve FILE` serves that model file. `--url`
scores any OpenAI-compatible server. `--gguf FILE` scores the server of the xllamacpp package (see
requirements.txt). If a server refuses `tools`, this module renders the chat template and posts the prompt to
/completions. The figures are right answers, answers that end within 128 tokens, answers that repeat a
four-gram three times, and words that the corpus contains.
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
DOCUMENTS_PER_LEG = 60_000
MAX_ANSWER_TOKENS = 128
MAX_COMPLETION_TOKENS = 512  # for rendered prompts; the default of /completions is 16
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
LISTENING_LINE = re.compile(r"Antiphon listens on (http://\S+)")
Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer; `calls` are pairs of name and arguments, `tokens` counts completion tokens."""

    text: str
    calls: tuple[tuple[str, object], ...]
    tokens: int
    finish: str

    @property
    def ended_in_time(self) -> bool:
        """Whether the model ended the answer within MAX_ANSWER_TOKENS."""
        return self.finish in ("stop", "tool_calls") and self.tokens <= MAX_ANSWER_TOKENS

    @property
    def repeats_itself(self) -> bool:
        """Whether any four-gram of words occurs three times."""
        words = self.text.split()
        return any(
            count > 2 for count in Counter(zip(*(words[index:] for index in range(4)), strict=False)).values()
        )


class Server:
    """An OpenAI-compatible server at a base URL that ends in /v1."""

    def __init__(self, url: str, model: str, *, rendered_tools: bool = False) -> None:
        self.url, self.model, self.rendered_tools = url.rstrip("/"), model, rendered_tools

    def answer(self, row: Row) -> Answer:
        """Requests the answer to a held-out row's messages."""
        request = {name: row[name] for name in ("messages", "tools") if name in row}
        response = (
            self._complete(request) if self.rendered_tools and "tools" in request else self._chat(request)
        )
        choice = response["choices"][0]
        message = choice.get("message") or {}
        text = choice.get("text") or message.get("content") or ""
        structured = [call["function"] for call in message.get("tool_calls") or []]
        calls = [(call["name"], _parse_arguments(call["arguments"])) for call in structured] or _find_calls(
            text
        )
        return Answer(text, tuple(calls), response["usage"]["completion_tokens"], choice["finish_reason"])

    def _chat(self, request: Row) -> dict[str, Any]:
        try:
            return self._post("/chat/completions", request)
        except urllib.error.HTTPError as refusal:
            if refusal.code != 400 or "tools" not in request:
                raise
        return self._complete(request)

    def _complete(self, request: Row) -> dict[str, Any]:
        return self._post(
            "/completions", {"prompt": render_prompt(request), "max_tokens": MAX_COMPLETION_TOKENS}
        )

    def _post(self, path: str, fields: Row) -> dict[str, Any]:
        body = json.dumps({"model": self.model, **fields}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            content: dict[str, Any] = json.load(response)
            return content


def render_prompt(request: Row) -> str:
    """Renders the chat template without BOS, because the server adds BOS to a raw prompt."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8").rstrip("\n"))
    return template.render(**request, bos_token="", add_generation_prompt=True)


def _parse_arguments(arguments: object) -> object:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return None


def _find_calls(text: str) -> list[tuple[str, object]]:
    calls = [_parse_arguments(body) for body in CALL.findall(text)]
    return [
        (call["name"], call.get("arguments")) for call in calls if isinstance(call, dict) and "name" in call
    ]


def is_right(row: Row, answer: Answer) -> bool:
    """Whether the answer matches the row's pattern, or is one call with the row's name and arguments."""
    if "accept" in row:
        return re.search(str(row["accept"]), answer.text, re.IGNORECASE | re.DOTALL) is not None
    return answer.calls == ((row["name"], row["arguments"]),)


def name_error(row: Row, answer: Answer) -> str:
    """Describes the error in a wrong answer to a row that expects one call."""
    if len(answer.calls) != 1:
        return "several calls" if answer.calls else "no call"
    return "another tool" if answer.calls[0][0] != row["name"] else "other arguments"


def collect_known_words() -> frozenset[str]:
    """Collects the corpus's words from enough documents of each leg to see all but invented words."""
    words: set[str] = set()
    for document in training(at_most=DOCUMENTS_PER_LEG):
        words.update(words_of(document.lead + document.text))
        for turn in document.turns:
            words.update(words_of(turn.content))
    return frozenset(words)


def score_server(server: Server, folder: Path) -> None:
    """Requests all answers and prints the figures."""
    answers: list[Answer] = []
    for name in ("questions", "new_questions", "tools", "others"):
        rows = [
            json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        wrong_ids: list[str] = []
        error_counts: Counter[str] = Counter()
        for row in rows:
            answers.append(server.answer(row))
            if not is_right(row, answers[-1]):
                wrong_ids.append(row["id"])
                error_counts.update([name_error(row, answers[-1])] if "name" in row else [])
        print(
            f"{name}: {len(rows) - len(wrong_ids)} of {len(rows)} right; wrong: {' '.join(wrong_ids)}",
            flush=True,
        )
        if error_counts:
            print(
                "  of the wrong calls "
                f"{', '.join(f'{count} {error}' for error, count in error_counts.items())}"
            )
    words = [word for answer in answers for word in words_of(answer.text)]
    known = collect_known_words()
    print(
        f"ended within {MAX_ANSWER_TOKENS} tokens: {sum(answer.ended_in_time for answer in answers)} of "
        f"{len(answers)}"
    )
    print(f"a four-gram three times: {sum(answer.repeats_itself for answer in answers)}")
    print(f"words known to the corpus: {sum(word in known for word in words)} of {len(words)}")


@contextmanager
def serve_antiphon(model: str) -> Iterator[str]:
    """Runs `antiphon serve` on a free port without the environment's settings; yields the base URL."""
    command = [sys.executable, "-m", "antiphon", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--log-level", "warning"]
    command += ["--model", f"cantor={model}"] if model else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    with TemporaryDirectory() as home:
        process = subprocess.Popen(
            command, cwd=home, env=environment | {"ANTIPHON_HOME": home}, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            match = next((match for match in map(LISTENING_LINE.search, process.stdout) if match), None)
            if match is None:
                raise SystemExit("`antiphon serve` did not start; run it alone to see why.")
            Thread(target=process.stdout.read, daemon=True).start()
            yield f"{match[1]}/v1"
        finally:
            process.terminate()
            process.wait(30)


def start_xllamacpp(path: Path) -> tuple[object, str]:
    """Starts xllamacpp's server on a model file; it runs while the returned object is referenced."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.use_jinja = recipe.CONTEXT, 1, True
    params.sampling.temp, params.sampling.top_p = recipe.TEMPERATURE, recipe.TOP_P
    server = xllamacpp.Server(params)
    return server, f"{server.listening_address}/v1"


def main() -> None:
    """Scores the server that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    source_options = parser.add_mutually_exclusive_group(required=True)
    source_options.add_argument("--url", help="base URL of a server, with /v1")
    source_options.add_argument("--gguf", type=Path, help="a file to serve with xllamacpp and score")
    source_options.add_argument(
        "--serve",
        nargs="?",
        const="",
        metavar="FILE",
        help="serve this model file, or without FILE the demo model, with `antiphon serve`",
    )
    parser.add_argument("--model", default="cantor")
    parser.add_argument("--heldout", type=Path, default=HERE / "heldout")
    arguments = parser.parse_args()
    if arguments.serve is not None:
        with serve_antiphon(arguments.serve) as url:
            score_server(Server(url, arguments.model), arguments.heldout)
        return
    xllamacpp_server, url = start_xllamacpp(arguments.gguf) if arguments.gguf else (None, arguments.url)
    # xllamacpp's server would constrain calls by a grammar, which would hide the model's own errors.
    score_server(Server(url, arguments.model, rendered_tools=xllamacpp_server is not None), arguments.heldout)


if __name__ == "__main__":
    main()
