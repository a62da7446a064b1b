"""The form of a product's documentation page: types, defaults and ranges of parameters, and how Antiphon
differs.

Bounds are inclusive, because some defaults on the pages equal a bound. docs/parameters.md contains the pages
next to the dialects' tables. tests/contract/test_pages.py tests the server with them.
"""

from enum import Enum

from antiphon.domain.values import Struct


class Unstated(Enum):
    """A mark for a value that the page does not state."""

    NONE = "none on the page"


UNSTATED = Unstated.NONE


class PageRow(Struct, frozen=True):
    """One parameter on a product's page."""

    name: str
    type: str
    """The type as the page writes it, with `|null` if null is accepted."""
    default: object = UNSTATED
    low: float | None = None
    high: float | None = None
    required: bool = False
    difference: str = ""
    """How Antiphon differs from the page, and why. Empty without a difference."""

    @property
    def is_nullable(self) -> bool:
        """Whether the page accepts null."""
        return self.type.endswith("| null")


class PageHeader(Struct, frozen=True):
    """One header on a product's page."""

    name: str
    meaning: str
    """The effect of the header on this server."""
    required: bool = False
    difference: str = ""
    """See `PageRow`."""


class ProductPage(Struct, frozen=True):
    """One product's page."""

    product: str
    endpoint: str
    """The product's own endpoint."""
    dialect: str
    """The dialect that implements the page."""
    served_at: str
    """The path on this server."""
    rows: tuple[PageRow, ...]
    headers: tuple[PageHeader, ...] = ()
    """The headers that the page lists among its parameters."""


COUNT = "prompts times n are at most 256, because of the memory"
USER = "is in the records of usage; the server does not look for abuse"
