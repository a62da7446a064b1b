"""A vocabulary of pieces of tool calls, and walks of a constraint over texts of it."""

from functools import lru_cache
from random import Random

from jsonschema import Draft202012Validator

from antiphon.constraints.checking_process import pick_allowed
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable
from antiphon.domain.messages import Tool
from antiphon.errors import EngineError

CONTROLS = (
    "[TOOL_CALLS]", "[ARGS]", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>",
    "<|constrain|>", "<|tool_call|>", "<|/tool_call|>", "<|python_tag|>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)  # fmt: skip
END = 256
IDS = {name: END + 1 + at for at, name in enumerate(CONTROLS)}
WORDS = [b'{"', b'"}', b'": ', b'{"name": "', b"<tool_call>", b"</tool_call>", b"}}", b"weather"]
PIECES = (*(bytes([byte]) for byte in range(256)), b"", *(b"" for _ in CONTROLS), *WORDS)
VOCABULARY = CompilerVocabulary(TokenTable(PIECES, (END,)))
NAMES = {token: name for name, token in IDS.items()}
WEATHER = Tool(
    "weather",
    None,
    {
        "type": "object",
        "properties": {
            "city": {"enum": ["Bern", "Rome"]},
            "days": {"type": "integer", "maximum": 9, "minimum": 0},
        },
        "required": ["city"],
    },
)
NOW = Tool("now")
SCHEMAS = {tool.name: Draft202012Validator(tool.schema) for tool in (WEATHER, NOW)}


@lru_cache(maxsize=32)
def compile_grammar(grammar: Grammar) -> Matcher:
    return Matcher(grammar, VOCABULARY)


def begin(grammar: Grammar) -> Matcher:
    """A new text of a grammar. A grammar is compiled once, which takes ten times as long as most texts."""
    return compile_grammar(grammar).copy()


def walk(matcher, seed, most=300):
    """A text that the constraint allows, ended by itself, with control tokens as their names."""
    chosen, said = Random(seed), b""
    for _ in range(most):
        forced = matcher.find_forced()
        tokens = [token for token in forced if token != END]
        if not forced:
            mask = matcher.compute_mask()
            if mask[END // 8] >> END % 8 & 1 and chosen.random() < 0.3:
                return said.decode(errors="replace")
            tokens = [pick_allowed(mask, chosen, VOCABULARY.size, frozenset({END})) or 0]
        matcher.consume(tokens)
        said += b"".join(NAMES[token].encode() if token in NAMES else PIECES[token] for token in tokens)
        if END in forced:
            return said.decode(errors="replace")
    return None


def takes(matcher, tokens):
    """Whether the constraint allows these next. A mask would not say: where a text is forced it shows only
    the tokens that the tokenizer would make of it."""
    try:
        matcher.consume(tokens)
    except EngineError:
        return False
    return True
