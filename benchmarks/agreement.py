"""How far the shipped Q8_0 of cantor agrees with the recorded float32 reference, token for token.

python benchmarks/agreement.py
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.engines.base import LoadSpec
from tests.models.test_reference import greedy, loaded, recorded

CANTOR = Path(__file__).parents[1] / "src" / "antiphon" / "bundled" / "cantor.gguf"


async def main() -> None:
    same, compared, whole, differences = 0, 0, 0, []
    rows = recorded("cantor_greedy.json")
    async with loaded(LoadSpec(str(CANTOR), sequences=4, exact=True)) as engine:
        ends = set((await engine.vocabulary()).end_ids)
        for row in rows:
            end = next(
                (place for place, token in enumerate(row["tokens"]) if token in ends), len(row["tokens"]) - 1
            )
            wanted = row["tokens"][: end + 1]
            said = await greedy(engine, row["prompt"], len(wanted))
            pairs = list(zip(wanted, said.tokens, strict=False))
            first = next((place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
            same, compared, whole = same + first, compared + len(wanted), whole + (said.tokens == wanted)
            differences += [
                abs(said.scores[place] - row["log_probabilities"][place]) for place in range(first)
            ]
    print(f"prompts answered as the reference to the end: {whole} of {len(rows)}")
    print(f"tokens before the first difference: {same} of {compared}")
    print(f"largest difference of log-probabilities among them: {max(differences):.4f}")


asyncio.run(main())
