"""Measures masks alone: microseconds of CPU time for a token, with the schemas of the tests, compared with
llama.cpp's grammar sampler on the same texts.

    python benchmarks/make_model.py --vocabulary 131072 --hidden 32 --heads 1 --kv-heads 1 --layers 1 \\
        --feed-forward 32 words.gguf
    python benchmarks/masks.py words.gguf [--source LLAMA_CPP] [--tokens 32]

Only the vocabulary of the model is used. `--source` names a tree of llama.cpp's sources. Then its converter
from JSON Schema is compiled (g++), and the grammar is used by `llama_sampler_init_grammar` of the library
that Antiphon uses, as in a llama-server without llguidance. The time for a token is that of
`llama_sampler_apply` to every id and of `llama_sampler_accept`. A second figure is for `apply` to the drawn
id alone, which llama-server tries first. A schema that the converter refuses or converts only in part is
counted and left out. A text ends early if llama.cpp's grammar does not allow its next token.
"""

import argparse
import asyncio
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import mean, quantiles

import numpy as np

from antiphon.constraints.checking_process import check_constraint, pick_allowed
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.mask_workers import build_token_table
from antiphon.constraints.matching import CompilerVocabulary, Matcher
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.domain.values import replace
from antiphon.engines.base import LoadSpec
from antiphon.engines.base import Vocabulary as Table
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.errors import AntiphonError

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.constraints.collected import REFUSED, TAKEN
from tests.support.everyday_schemas import EVERYDAY

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
PATIENCE = 2.0
"""The most CPU seconds of llama.cpp's sampler for one schema."""

CONVERTER = """
#include "json-schema-to-grammar.h"
#include "common.h"
#include <iostream>
std::string string_repeat(const std::string & one, size_t n) {
    std::string made;
    while (n--) made += one;
    return made;
}
std::string string_join(const std::vector<std::string> & all, const std::string & between) {
    std::string made;
    for (size_t at = 0; at < all.size(); at++) made += (at ? between : "") + all[at];
    return made;
}
std::vector<std::string> string_split(const std::string & text, const std::string & by) {
    std::vector<std::string> made;
    size_t from = 0, to;
    while ((to = text.find(by, from)) != std::string::npos) {
        made.push_back(text.substr(from, to - from));
        from = to + by.size();
    }
    made.push_back(text.substr(from));
    return made;
}
extern "C" void ggml_abort(const char *, int, const char *, ...) { abort(); }
int main() {
    std::string text((std::istreambuf_iterator<char>(std::cin)), {});
    try {
        std::cout << json_schema_to_grammar(common_json::parse(text), true);
    } catch (const std::exception & problem) {
        std::cerr << problem.what();
        return 1;
    }
}
"""


class Candidates(ctypes.Structure):
    """llama_token_data_array."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


@dataclass
class Times:
    """Microseconds for each token."""

    all_ids: list[float] = field(default_factory=list)
    """The times to mask every id and to accept the token."""
    drawn_id: list[float] = field(default_factory=list)
    """The times to check only the drawn token and to accept it."""
    cut: int = 0
    """The number of schemas whose text llama.cpp's grammar did not allow completely."""
    slow: int = 0
    """The number of schemas that took longer than PATIENCE."""


class TokenPath:
    """A text of a schema, generated with Antiphon's masks: random tokens, and forced tokens one by one."""

    def __init__(self, grammar: Grammar, vocabulary: CompilerVocabulary, max_tokens: int) -> None:
        self.grammar = grammar
        self.tokens: list[int] = []
        self.times: list[float] = []
        ends, randomizer = frozenset(vocabulary.tokens.ends), Random(0)
        matcher = Matcher(grammar, vocabulary)
        while len(self.tokens) < max_tokens:
            mask = matcher.compute_mask() if not self.tokens else self._measure_next_mask(matcher)
            token = pick_allowed(mask, randomizer, vocabulary.size, ends)
            if token is None:
                return
            self.tokens.append(token)

    def _measure_next_mask(self, matcher: Matcher) -> bytes:
        began = time.thread_time()
        matcher.consume(self.tokens[-1:])
        mask = matcher.compute_mask()
        self.times.append((time.thread_time() - began) * 1e6)
        return mask


def time_answers(
    grammar: Grammar, vocabulary: CompilerVocabulary, max_tokens: int
) -> tuple[list[float], int]:
    """Generates a text as the server does. Returns the microseconds of each answer (all forced tokens, then a
    mask), and the number of tokens."""
    ends, randomizer = frozenset(vocabulary.tokens.ends), Random(0)
    matcher, times, tokens, drawn = Matcher(grammar, vocabulary), [], 0, None
    while tokens < max_tokens:
        began = time.thread_time()
        if drawn is not None:
            matcher.consume([drawn])
        forced = matcher.find_forced()
        is_over = bool(ends & set(forced))
        if not is_over:
            matcher.consume(forced)
            mask = matcher.compute_mask()
        times.append((time.thread_time() - began) * 1e6)
        tokens += len(forced) + 1
        drawn = None if is_over else pick_allowed(mask, randomizer, vocabulary.size, ends)
        if drawn is None:
            break
    return times, tokens


class LlamaGrammarSampler:
    """llama.cpp's grammar sampler."""

    def __init__(self, model: Path, source: Path, folder: Path) -> None:
        library, _ = find_library(None)
        self._model = NativeModel(library, model)
        self._call = library.call
        self._vocabulary = self._call.llama_model_get_vocab(self._model.pointer)
        self._call.llama_sampler_init_grammar.restype = ctypes.c_void_p
        for name, arguments in {
            "init_grammar": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p],
            "apply": [ctypes.c_void_p, ctypes.POINTER(Candidates)],
            "accept": [ctypes.c_void_p, ctypes.c_int32],
            "free": [ctypes.c_void_p],
        }.items():
            getattr(self._call, f"llama_sampler_{name}").argtypes = arguments
        self._rows = np.zeros(self._model.size, CANDIDATE)
        self._rows["id"] = np.arange(self._model.size)
        self._converter = build_converter(source, folder)

    def convert_schema(self, schema: object) -> tuple[bytes, bytes]:
        """Converts a schema. Returns the grammar, which is empty if it is refused, and the converter's
        messages."""
        source = json.dumps(schema).encode()
        run = subprocess.run([self._converter], input=source, capture_output=True, check=False)
        return run.stdout if run.returncode == 0 else b"", run.stderr

    def follow(self, grammar: bytes, tokens: Sequence[int], times: Times) -> bool:
        """Measures a text. Returns whether llama.cpp could parse the grammar."""
        sampler = self._call.llama_sampler_init_grammar(self._vocabulary, grammar, b"root")
        if not sampler:
            return False
        deadline = time.thread_time() + PATIENCE
        for token in tokens:
            all_ids_us = self._apply(sampler, self._rows)
            if self._rows["logit"][token] < 0:
                times.cut += 1
                break
            drawn_id_us = self._apply(sampler, self._rows[token : token + 1])
            began = time.thread_time()
            self._call.llama_sampler_accept(sampler, token)
            accept_us = (time.thread_time() - began) * 1e6
            times.all_ids.append(all_ids_us + accept_us)
            times.drawn_id.append(drawn_id_us + accept_us)
            if time.thread_time() > deadline:
                times.slow += 1
                break
        self._call.llama_sampler_free(sampler)
        return True

    def _apply(self, sampler: int, rows: np.ndarray) -> float:
        rows["logit"] = 0
        candidates = Candidates(rows.ctypes.data, len(rows), -1, False)
        began = time.thread_time()
        self._call.llama_sampler_apply(sampler, ctypes.byref(candidates))
        return (time.thread_time() - began) * 1e6


def build_converter(source: Path, folder: Path) -> str:
    """Compiles llama.cpp's converter. Returns the path of the program."""
    main, program = folder / "main.cpp", folder / "converter"
    main.write_text(CONVERTER)
    parts = [source / "common" / f"{name}.cpp" for name in ("json-schema-to-grammar", "json-schema", "json")]
    parts += [source / "common" / f"{name}.cpp" for name in ("trie", "unicode")]
    include_options = [
        f"-I{source / include_folder}" for include_folder in ("common", "vendor", "include", "ggml/include")
    ]
    subprocess.run(["g++", "-std=c++17", "-O1", *include_options, "-o", program, main, *parts], check=True)
    return str(program)


def format_times(label: str, times: Sequence[float]) -> str:
    """Formats mean, p99 and worst."""
    return (
        f"{label}: mean {mean(times):.0f} us, p99 {quantiles(times, n=100)[98]:.0f}, worst {max(times):.0f}"
    )


def compile_schemas(vocabulary: CompilerVocabulary) -> tuple[list[tuple[object, Grammar]], list[object]]:
    """Compiles all schemas. Returns the accepted ones with their grammars, and the refused ones."""
    accepted, refused = [], []
    for schema in [*EVERYDAY.values(), *TAKEN, *REFUSED.values()]:
        try:
            constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
            accepted.append((schema, check_constraint(constraint, vocabulary)))
        except AntiphonError:
            refused.append(schema)
    return accepted, refused


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, help="a tree of llama.cpp's sources")
    parser.add_argument("--tokens", type=int, default=32, help="of each text, at most")
    options = parser.parse_args()
    vocabulary = CompilerVocabulary(build_token_table(read_vocabulary(options.model)))
    accepted, refused = compile_schemas(vocabulary)
    paths = [TokenPath(grammar, vocabulary, options.tokens) for _, grammar in accepted]
    step_times = [time_us for token_path in paths for time_us in token_path.times]
    print(
        f"vocabulary {vocabulary.size}, {len(accepted)} schemas taken and {len(refused)} refused, "
        f"{len(step_times)} tokens, load average {os.getloadavg()[0]:.1f}"
    )
    print(format_times("Antiphon, taking a token and the next mask", step_times))
    answer_results = [time_answers(grammar, vocabulary, options.tokens) for _, grammar in accepted]
    times = [time_us for path_times, _ in answer_results for time_us in path_times]
    print(
        format_times("Antiphon, an answer as served (forced tokens and a mask)", times)
        + f"; {sum(times) / sum(count for _, count in answer_results):.0f} us for a token"
    )
    report_keys(paths, vocabulary)
    if options.source:
        with tempfile.TemporaryDirectory() as folder:
            compare_with_llama(
                LlamaGrammarSampler(options.model, options.source, Path(folder)), accepted, refused, paths
            )


def report_keys(paths: Sequence[TokenPath], vocabulary: CompilerVocabulary) -> None:
    """Prints the cost of the checks of repeated keys, by the same texts with and without the checks."""
    open_paths = [token_path for token_path in paths if token_path.grammar.places]
    unwatched_times, watched_times = list[float](), list[float]()
    for token_path in open_paths:
        unwatched_times += time_tokens(
            replace(token_path.grammar, places=None), vocabulary, token_path.tokens
        )
        watched_times += time_tokens(token_path.grammar, vocabulary, token_path.tokens)
    print(format_times(f"{len(open_paths)} schemas with open objects, keys watched", watched_times))
    print(
        format_times("the same texts, keys not watched", unwatched_times)
        + f"; ratio {mean(watched_times) / mean(unwatched_times):.2f}"
    )


def time_tokens(grammar: Grammar, vocabulary: CompilerVocabulary, tokens: Sequence[int]) -> list[float]:
    """Returns the microseconds to accept each token of a text and to compute the next mask."""
    matcher, times = Matcher(grammar, vocabulary), []
    matcher.compute_mask()
    for token in tokens:
        began = time.thread_time()
        matcher.consume([token])
        matcher.compute_mask()
        times.append((time.thread_time() - began) * 1e6)
    return times


def compare_with_llama(
    sampler: LlamaGrammarSampler,
    accepted: list[tuple[object, Grammar]],
    refused: list[object],
    paths: list["TokenPath"],
) -> None:
    """Measures llama.cpp's sampler on the same texts, and prints the comparison."""
    times, antiphon_times, not_converted, incomplete, unread = Times(), [], 0, 0, 0
    for (schema, _), token_path in zip(accepted, paths, strict=True):
        grammar, problem = sampler.convert_schema(schema)
        not_converted += not grammar
        incomplete += bool(grammar and problem)
        if not grammar or problem:
            continue
        count_before = len(times.all_ids)
        if not sampler.follow(grammar, token_path.tokens, times):
            unread += 1
        antiphon_times += token_path.times[: len(times.all_ids) - count_before]
    summary = f"llama.cpp: of the {len(accepted)} schemas its converter refuses {not_converted}, says of "
    summary += f"{incomplete} it keeps not all, makes of {unread} what its parser does not read; "
    summary += f"{times.cut} texts are left where it does not allow the next token, "
    print(summary + f"{times.slow} after {PATIENCE:.0f} s")
    silent_count = sum(
        bool(grammar) and not problem for grammar, problem in map(sampler.convert_schema, refused)
    )
    print(f"of the {len(refused)} that Antiphon refuses it takes {silent_count} and says nothing")
    print(
        format_times(f"llama.cpp, every id and taking the token ({len(times.all_ids)} tokens)", times.all_ids)
    )
    print(format_times("llama.cpp, the drawn id alone and taking it", times.drawn_id))
    print(format_times(f"Antiphon along the same ({len(antiphon_times)} tokens)", antiphon_times))
    all_ratio, drawn_ratio = (
        mean(times.all_ids) / mean(antiphon_times),
        mean(times.drawn_id) / mean(antiphon_times),
    )
    print(f"llama.cpp over Antiphon, means: every id {all_ratio:.1f}, drawn alone {drawn_ratio:.2f}")


def read_vocabulary(path: Path) -> Table:
    """Reads the vocabulary of a model with the engine."""

    async def read() -> Table:
        engine = LlamaTokenEngine()
        await engine.load(LoadSpec(str(path), sequences=1, context_length=64))
        try:
            return await engine.vocabulary()
        finally:
            await engine.aclose()

    return asyncio.run(read())


if __name__ == "__main__":
    main()
