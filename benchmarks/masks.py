"""Masks by themselves: microseconds of processor time for a token, over the schemas of the tests, beside the
grammar sampler of llama.cpp along the same texts.

    python benchmarks/make_model.py --vocabulary 131072 --hidden 32 --heads 1 --kv-heads 1 --layers 1 \\
        --feed-forward 32 words.gguf
    python benchmarks/masks.py words.gguf [--source LLAMA_CPP] [--tokens 32]

Only the vocabulary of the model is used. With `--source`, a tree of llama.cpp's sources, its converter from
JSON Schema is compiled (g++), and the grammar goes to `llama_sampler_init_grammar` of the library that
Antiphon uses: this is what llama-server does when it is not built with llguidance. Its time for a token is
`llama_sampler_apply` to every id and `llama_sampler_accept`; beside it `apply` to the drawn id alone, which
llama-server tries first. A schema that the converter refuses, or says that it does not keep, is counted and
left out, and a text is left where the other grammar does not allow its next token.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import mean, quantiles

import numpy as np

from antiphon.constraints.checking_process import check_constraint, pick_allowed
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.mask_workers import build_token_table
from antiphon.constraints.matching import CompilerVocabulary, Matcher
from antiphon.domain.request import Constraint, ConstraintKind
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
"""Seconds of processor time that one schema may take on the other side."""

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

    all: list[float] = field(default_factory=list)
    """Of a mask of every id, and taking the token."""
    drawn: list[float] = field(default_factory=list)
    """Of the drawn token alone, and taking it."""
    cut: int = 0
    """Schemas along whose text the other grammar did not go to the end."""
    slow: int = 0
    """Schemas that took longer than they may."""


class Walk:
    """One text of a schema, by Antiphon's masks: random tokens, all forced ones taken one by one."""

    def __init__(self, grammar: Grammar, words: CompilerVocabulary, most: int) -> None:
        self.grammar = grammar
        self.tokens: list[int] = []
        self.times: list[float] = []
        ends, chosen = frozenset(words.tokens.ends), Random(0)
        matcher = Matcher(grammar, words)
        while len(self.tokens) < most:
            mask = matcher.compute_mask() if not self.tokens else self._timed(matcher)
            token = pick_allowed(mask, chosen, words.size, ends)
            if token is None:
                return
            self.tokens.append(token)

    def _timed(self, matcher: Matcher) -> bytes:
        began = time.thread_time()
        matcher.consume(self.tokens[-1:])
        mask = matcher.compute_mask()
        self.times.append((time.thread_time() - began) * 1e6)
        return mask


def answered(grammar: Grammar, words: CompilerVocabulary, most: int) -> tuple[list[float], int]:
    """As the server follows it: microseconds of each answer (forced tokens taken at once, then a mask), and
    how many tokens these were."""
    ends, chosen = frozenset(words.tokens.ends), Random(0)
    matcher, times, tokens, drawn = Matcher(grammar, words), [], 0, None
    while tokens < most:
        began = time.thread_time()
        if drawn is not None:
            matcher.consume([drawn])
        forced = matcher.find_forced()
        over = bool(ends & set(forced))
        if not over:
            matcher.consume(forced)
            mask = matcher.compute_mask()
        times.append((time.thread_time() - began) * 1e6)
        tokens += len(forced) + 1
        drawn = None if over else pick_allowed(mask, chosen, words.size, ends)
        if drawn is None:
            break
    return times, tokens


class Peer:
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
        self._converter = built(source, folder)

    def grammar(self, schema: object) -> tuple[bytes, bytes]:
        """The grammar of a schema, empty when refused; and what was said."""
        asked = json.dumps(schema).encode()
        run = subprocess.run([self._converter], input=asked, capture_output=True, check=False)
        return run.stdout if run.returncode == 0 else b"", run.stderr

    def follow(self, grammar: bytes, tokens: Sequence[int], times: Times) -> bool:
        """Times a text; whether the grammar could be read."""
        sampler = self._call.llama_sampler_init_grammar(self._vocabulary, grammar, b"root")
        if not sampler:
            return False
        until = time.thread_time() + PATIENCE
        for token in tokens:
            every = self._apply(sampler, self._rows)
            if self._rows["logit"][token] < 0:
                times.cut += 1
                break
            one = self._apply(sampler, self._rows[token : token + 1])
            began = time.thread_time()
            self._call.llama_sampler_accept(sampler, token)
            taken = (time.thread_time() - began) * 1e6
            times.all.append(every + taken)
            times.drawn.append(one + taken)
            if time.thread_time() > until:
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


def built(source: Path, folder: Path) -> str:
    """The converter of these sources as a program."""
    main, made = folder / "main.cpp", folder / "converter"
    main.write_text(CONVERTER)
    parts = [source / "common" / f"{name}.cpp" for name in ("json-schema-to-grammar", "json-schema", "json")]
    parts += [source / "common" / f"{name}.cpp" for name in ("trie", "unicode")]
    places = [f"-I{source / place}" for place in ("common", "vendor", "include", "ggml/include")]
    subprocess.run(["g++", "-std=c++17", "-O1", *places, "-o", made, main, *parts], check=True)
    return str(made)


def said(what: str, times: Sequence[float]) -> str:
    """Average, p99 and worst."""
    return f"{what}: mean {mean(times):.0f} us, p99 {quantiles(times, n=100)[98]:.0f}, worst {max(times):.0f}"


def compiled(words: CompilerVocabulary) -> tuple[list[tuple[object, Grammar]], list[object]]:
    """The schemas that are taken, with their grammars; and those that are refused."""
    taken, refused = [], []
    for schema in [*EVERYDAY.values(), *TAKEN, *REFUSED.values()]:
        try:
            constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
            taken.append((schema, check_constraint(constraint, words)))
        except AntiphonError:
            refused.append(schema)
    return taken, refused


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("model", type=Path)
    asked.add_argument("--source", type=Path, help="a tree of llama.cpp's sources")
    asked.add_argument("--tokens", type=int, default=32, help="of each text, at most")
    given = asked.parse_args()
    words = CompilerVocabulary(build_token_table(vocabulary(given.model)))
    taken, refused = compiled(words)
    walks = [Walk(grammar, words, given.tokens) for _, grammar in taken]
    ours = [each for walk in walks for each in walk.times]
    print(
        f"vocabulary {words.size}, {len(taken)} schemas taken and {len(refused)} refused, "
        f"{len(ours)} tokens, load average {os.getloadavg()[0]:.1f}"
    )
    print(said("Antiphon, taking a token and the next mask", ours))
    served = [answered(grammar, words, given.tokens) for _, grammar in taken]
    times = [each for some, _ in served for each in some]
    print(
        said("Antiphon, an answer as served (forced tokens and a mask)", times)
        + f"; {sum(times) / sum(count for _, count in served):.0f} us for a token"
    )
    say_keys(walks, words)
    if given.source:
        with tempfile.TemporaryDirectory() as folder:
            beside(Peer(given.model, given.source, Path(folder)), taken, refused, walks)


def say_keys(walks: Sequence[Walk], words: CompilerVocabulary) -> None:
    """Says what watching keys costs, along the same texts with and without."""
    watched = [walk for walk in walks if walk.grammar.places]
    without, within = list[float](), list[float]()
    for walk in watched:
        without += again(replace(walk.grammar, places=None), words, walk.tokens)
        within += again(walk.grammar, words, walk.tokens)
    print(said(f"{len(watched)} schemas with open objects, keys watched", within))
    print(said("the same texts, keys not watched", without) + f"; ratio {mean(within) / mean(without):.2f}")


def again(grammar: Grammar, words: CompilerVocabulary, tokens: Sequence[int]) -> list[float]:
    """Microseconds of taking each token of a text and making the next mask."""
    matcher, times = Matcher(grammar, words), []
    matcher.compute_mask()
    for token in tokens:
        began = time.thread_time()
        matcher.consume([token])
        matcher.compute_mask()
        times.append((time.thread_time() - began) * 1e6)
    return times


def beside(
    peer: Peer, taken: list[tuple[object, Grammar]], refused: list[object], walks: list["Walk"]
) -> None:
    """Says the same of the other side."""
    times, ours, not_converted, incomplete, unread = Times(), [], 0, 0, 0
    for (schema, _), walk in zip(taken, walks, strict=True):
        grammar, problem = peer.grammar(schema)
        not_converted += not grammar
        incomplete += bool(grammar and problem)
        if not grammar or problem:
            continue
        before = len(times.all)
        if not peer.follow(grammar, walk.tokens, times):
            unread += 1
        ours += walk.times[: len(times.all) - before]
    said_of = f"llama.cpp: of the {len(taken)} schemas its converter refuses {not_converted}, says of "
    said_of += f"{incomplete} it keeps not all, makes of {unread} what its parser does not read; "
    said_of += f"{times.cut} texts are left where it does not allow the next token, "
    print(said_of + f"{times.slow} after {PATIENCE:.0f} s")
    silent = sum(bool(grammar) and not problem for grammar, problem in map(peer.grammar, refused))
    print(f"of the {len(refused)} that Antiphon refuses it takes {silent} and says nothing")
    print(said(f"llama.cpp, every id and taking the token ({len(times.all)} tokens)", times.all))
    print(said("llama.cpp, the drawn id alone and taking it", times.drawn))
    print(said(f"Antiphon along the same ({len(ours)} tokens)", ours))
    every, alone = mean(times.all) / mean(ours), mean(times.drawn) / mean(ours)
    print(f"llama.cpp over Antiphon, means: every id {every:.1f}, drawn alone {alone:.2f}")


def vocabulary(path: Path) -> Table:
    """The vocabulary of a model, as the engine gives it."""

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
