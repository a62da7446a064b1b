"""What tools give back, and the answers that tell it."""

import json
import random

from models.cantor.corpus.values import draw_value

STATES = (
    "ok",
    "done",
    "sunny",
    "rain",
    "cloudy",
    "ready",
    "open",
    "closed",
    "running",
    "sent",
    "saved",
    "found",
    "cold",
    "warm",
    "on",
    "off",
    "full",
    "empty",
    "late",
    "on time",
)


def result_of(rng: random.Random) -> tuple[str, str]:
    """What a tool gives back, and the answer that tells it."""
    roll = rng.random()
    if roll < 0.3:
        state = rng.choice(STATES)
        return state, f"The result is: {state}."
    if roll < 0.5:
        number = rng.randint(0, 9999)
        return str(number), f"The result is: {number}."
    keys = rng.sample(
        (
            "status",
            "temperature",
            "result",
            "price",
            "time",
            "count",
            "value",
            "id",
            "state",
            "total",
            "wind",
            "name",
            "balance",
        ),
        rng.randint(1, 2),
    )
    pairs = {
        key: rng.choice((rng.choice(STATES), rng.randint(0, 999), str(draw_value("word", rng))))
        for key in keys
    }
    return json.dumps(pairs), "The result is: " + ", ".join(
        f"{key} {value}" for key, value in pairs.items()
    ) + "."
