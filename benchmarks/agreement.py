"""Compares the tokens of the shipped Q8_0 file of cantor with the recorded float32 reference.

python benchmarks/agreement.py
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.engines.base import LoadSpec
from tests.support.reference_answers import greedy, loaded, recorded

CANTOR = Path(__file__).parents[1] / "src" / "antiphon" / "bundled" / "cantor.gguf"


async def main() -> None:
    matching, expected_count, complete, differences = 0, 0, 0, []
    rows = recorded("cantor_greedy.json")
    async with loaded(LoadSpec(str(CANTOR), sequences=4, exact=True)) as engine:
        ends = set((await engine.vocabulary()).end_ids)
        for row in rows:
            end = next(
                (position for position, token in enumerate(row["tokens"]) if token in ends),
                len(row["tokens"]) - 1,
            )
            expected = row["tokens"][: end + 1]
            generated = await greedy(engine, row["prompt"], len(expected))
            pairs = list(zip(expected, generated.tokens, strict=False))
            first_difference = next(
                (
                    position
                    for position, (generated_token, expected_token) in enumerate(pairs)
                    if generated_token != expected_token
                ),
                len(pairs),
            )
            matching, expected_count, complete = (
                matching + first_difference,
                expected_count + len(expected),
                complete + (generated.tokens == expected),
            )
            differences += [
                abs(generated.scores[position] - row["log_probabilities"][position])
                for position in range(first_difference)
            ]
    print(f"prompts with all tokens equal to the reference: {complete} of {len(rows)}")
    print(f"tokens before the first difference: {matching} of {expected_count}")
    print(f"largest difference of log-probabilities of these tokens: {max(differences):.4f}")


asyncio.run(main())
