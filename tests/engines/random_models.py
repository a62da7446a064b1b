"""Models of random weights at the size that tests of the engine want, or many times larger or smaller.

A small model makes any machine a fast one, and a large model a slow one: no test of the engine may depend on
how long a step takes.
"""

import os

from antiphon.domain.values import replace
from benchmarks import make_model
from benchmarks.make_model import Shape

SCALE = float(os.environ.get("ANTIPHON_TEST_MODEL_SCALE", "1"))
"""How many times as many weights the layers of a model have."""

GRID = 32
"""Quantized types want widths that divide by it."""

NARROWEST = 64
"""Of the hidden state: exact mode's proof at load compares too few numbers of a narrower model to see that a
lone row is computed by another kernel."""


def scale_shape(shape: Shape, factor: float) -> Shape:
    """The shape with about so many times the weights in its layers. Its vocabulary, context and number of
    heads stay, since tests name token ids and lengths."""
    hidden, feed_forward = (
        max(least, round(width * factor**0.5 / GRID) * GRID)
        for width, least in ((shape.hidden, NARROWEST), (shape.feed_forward, GRID))
    )
    scaled = hidden * feed_forward / (shape.hidden * shape.feed_forward)
    layers = max(1, round(shape.layers * min(1.0, factor / scaled)))
    return replace(shape, layers=layers, hidden=hidden, feed_forward=feed_forward)


SIZES = {name: scale_shape(shape, SCALE) for name, shape in make_model.SIZES.items()}
