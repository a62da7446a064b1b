"""The list of all dialects, which the server, the generator of the docs and the tests read.

A new dialect is one more class in the list.
"""

from antiphon.dialects.base import Dialect, DialectOptions
from antiphon.dialects.empower.dialect import Empower
from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.dialects.jamai.dialect import Jamai
from antiphon.dialects.messages.dialect import Messages
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.dialects.responses.dialect import Responses
from antiphon.dialects.sgp.dialect import Sgp

DIALECTS = (OpenAI, Fireworks, Empower, Jamai, Sgp, Messages, Responses)
"""The server's own dialect, then those that have a prefix."""

ALIASES = {name: model for dialect in DIALECTS for name, model in dialect.aliases.items()}
"""Names of models that the products' callers use."""


def create_dialects(options: DialectOptions) -> tuple[Dialect, ...]:
    """Creates all dialects of a server, in the order of the list."""
    return tuple(dialect.create(options) for dialect in DIALECTS)
