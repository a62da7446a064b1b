"""Of several candidates of each prompt the best (`best_of`): those with the highest mean log-probability per
token."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from antiphon.domain.events import Delta, DiscardedTokens, Event, Finished
from antiphon.domain.values import changed
from antiphon.rendering.scored import ScoredDecoder


async def choose_best(
    events: AsyncGenerator[Event, None], voices: Sequence[ScoredDecoder], prompts: int, choices: int
) -> AsyncGenerator[Event, None]:
    """The events of the `choices` best candidates of each prompt, best first and numbered so, when all are
    complete; ties go by the candidates' own numbers. Until then what they make is told as Drafted."""
    said: list[list[Delta | Finished]] = [[] for _ in voices]
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, Delta | Finished):
                yield event
                continue
            said[event.choice].append(event)
            if event.tokens:
                yield DiscardedTokens(event.tokens)
    each = len(voices) // prompts
    for prompt in range(prompts):
        ranked = sorted(voices[prompt * each : (prompt + 1) * each], key=lambda voice: -voice.mean())
        for place, voice in enumerate(ranked[:choices], start=prompt * choices):
            for event in said[voice.choice]:
                yield changed(event, choice=place, tokens=0)
