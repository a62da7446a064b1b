"""Measures the cost of the renderer: for each token between the token engine and the events, for each prompt,
and for each tool that an agent sends again in every turn.

python benchmarks/renderer.py [--rounds 20]

The token engine has every token ready, so the time is the renderer's. The ratio compares with the same engine
without a renderer. It runs in one process with uvloop, without a socket. It measures CPU time, which other
work on the machine does not affect much. Prints median and worst of the rounds.
"""

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.dialects.openai.dialect import decode_chat
from antiphon.domain.context import Context, SystemClock
from antiphon.domain.messages import Message, Role, Tools
from antiphon.domain.request import Conversation, GenerationRequest, Output, RawPrompt
from antiphon.engines.base import (
    Counts,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TokenEvent,
    TokenRequest,
)
from antiphon.rendering.renderer import Renderer
from antiphon.rendering.template.chat_template import ChatTemplate, SpecialTokens, prove
from antiphon.rendering.template.messages import measure as measure_conversation
from antiphon_testing import ScriptedTokenEngine
from antiphon_testing.rules import open_stream
from antiphon_testing.scripted_token_engine import CHATML
from antiphon_testing.toy_model import CONTROLS
from tests.support.tool_templates import QWEN_CODER

TOKENS = 1000
WORD = " world"
LONG_DEADLINE = 600.0


class ReadyEngine(ScriptedTokenEngine):
    """An engine that has every token ready. Each step lets other tasks run, as a decode step does."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        step = Steps(self.tokenizer.encode_plain(WORD))
        yield SequenceStarted(3)
        for _ in range(request.max_tokens):
            await asyncio.sleep(0)
            yield step
        yield SequenceFinished(StopCause.LENGTH, Counts(3, request.max_tokens))


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request."""

    name: str
    output: Output
    deadline: bool = False


CASES = (
    Case("one choice", Output(TOKENS)),
    Case("one choice, stop strings", Output(TOKENS, stop=("\n\n", "<END>", "w0rld"))),
    Case("one choice, deadline", Output(TOKENS), deadline=True),
    Case("four choices", Output(TOKENS, choices=4)),
)


async def prove_here(payload: Mapping[str, object]) -> None:
    prove(payload)


async def read_bare(engine: ReadyEngine) -> float:
    """Returns the CPU seconds for each token of the engine alone."""
    began = time.process_time()
    async for _ in engine.generate(TokenRequest(PromptTokens((5,)), TOKENS)):
        pass
    return (time.process_time() - began) / TOKENS


async def read(renderer: Renderer, case: Case) -> float:
    """Returns the CPU seconds for each token of all choices."""
    deadline = time.monotonic() + LONG_DEADLINE if case.deadline else None
    request = GenerationRequest("m", (RawPrompt("Hello"),), output=case.output)
    began = time.process_time()
    async with open_stream(renderer, request, Context("r", deadline=deadline)) as events:
        async for _ in events:
            pass
    return (time.process_time() - began) / (TOKENS * case.output.choices)


async def measure(rounds: int) -> None:
    engine = ReadyEngine()
    renderer = Renderer(engine, prove=prove_here)
    for case in CASES:
        await read(renderer, case)
        times = [(await read(renderer, case), await read_bare(engine)) for _ in range(rounds)]
        renderer_times, engine_times = zip(*times, strict=True)
        ratio = statistics.median(renderer_times) / statistics.median(engine_times)
        print_times(f"token, {case.name}", renderer_times)
        print(f"{'':36}  {ratio:.1f} times the engine alone ({statistics.median(engine_times) * 1e6:.2f} us)")


def create_render_call(message_count: int, characters: int) -> Callable[[], object]:
    """Returns a function that renders a conversation with messages of this count and size."""
    template = ChatTemplate(CHATML, SpecialTokens(CONTROLS, "<s>", "</s>"))
    text = ("Some words, and <a mark>. " * (characters // 26 + 1))[:characters]
    roles = (Role.USER, Role.ASSISTANT)
    conversation = Conversation(tuple(Message(roles[index % 2], text) for index in range(message_count)))
    clock = SystemClock()
    return lambda: template.render(conversation, clock)


def measure_prompts(rounds: int) -> None:
    for message_count, characters in ((1, 100), (20, 200), (500, 200), (1, 1_000_000)):
        render_once = create_render_call(message_count, characters)
        times = []
        for _ in range(rounds):
            began = time.process_time()
            render_once()
            times.append(time.process_time() - began)
        print_times(f"prompt, {message_count} messages of {characters:,} characters", times)


TOOLS = 40

PARAMETERS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "file_path": {"type": "string", "description": "The absolute path of the file to change. " * 2},
        "old_string": {"type": "string", "description": "The text to replace. " * 4},
        "replace_all": {"type": "boolean", "default": False, "description": "Replace all occurrences."},
        "mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
        "limit": {"type": "number", "minimum": 1, "maximum": 1000, "description": "The most results."},
        "edits": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "content": {"type": "string", "minLength": 1},
                    "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                },
                "required": ["content", "status"],
                "additionalProperties": False,
            },
        },
        "timeout": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None},
    },
    "required": ["file_path", "old_string"],
    "additionalProperties": False,
}


def measure_tools(rounds: int) -> None:
    """Measures what each of an agent's tools costs in a turn after the first one."""
    functions = [
        {
            "name": f"edit_{number}",
            "description": "Replaces texts in a file. Read the file first. " * 20,
            "parameters": PARAMETERS | {"title": f"Edit {number}"},
        }
        for number in range(TOOLS)
    ]
    turn = {"role": "user", "content": "Hi"}
    tools = [{"type": "function", "function": function} for function in functions]
    body = json.dumps({"model": "m", "messages": [turn], "tools": tools}).encode()
    template = ChatTemplate(QWEN_CODER, SpecialTokens(CONTROLS, "<s>", "</s>"))
    controls = {name: number for number, name in enumerate(CONTROLS)}
    stages: dict[str, Callable[[Conversation], object]] = {
        "its body and its schema": lambda _: decode_chat(body),
        "its size": measure_conversation,
        "its grammar": lambda conversation: template.call_notation.build_constraint(
            conversation.tools or Tools(()), controls
        ),
        "its part of the prompt": lambda conversation: template.render(conversation, SystemClock()),
    }
    times: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(rounds + 1):
        (conversation,) = decode_chat(body).request.prompts
        if not isinstance(conversation, Conversation):
            raise TypeError
        for name, work in stages.items():
            began = time.process_time()
            work(conversation)
            times[name].append((time.process_time() - began) / TOOLS)
    for name, seconds in times.items():
        print_times(f"tool of {len(body) // TOOLS:,} bytes, {name}", seconds[1:])
    print_times("tool, all of it", [sum(each) for each in zip(*times.values(), strict=True)][1:])


def print_times(name: str, seconds: tuple[float, ...] | list[float]) -> None:
    print(f"{name:50} {statistics.median(seconds) * 1e6:10.1f} us median {max(seconds) * 1e6:10.1f} worst")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"{TOKENS} tokens, {rounds} rounds, {platform.machine()}, Python {platform.python_version()}")
    uvloop.run(measure(rounds))
    measure_prompts(rounds)
    measure_tools(rounds)


if __name__ == "__main__":
    main()
