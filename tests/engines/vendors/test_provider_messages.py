"""A provider's messages to callers show no secret of the operator."""

import pytest

from antiphon.engines.vendors.base import VendorError
from antiphon.engines.vendors.errors import read_retry_after
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.provider import Provider, ProviderOptions


def test_a_key_in_a_header_of_the_operator_is_not_shown():
    options = ProviderOptions(
        "first", "https://api.example/v1", ("authorization", "Bearer "), headers={"x-key": "odd.secret"}
    )
    provider = Provider(options, OpenAIUpstream(), lambda: "plain.key")
    error = provider.map_error(400, VendorError("odd.secret and plain.key are wrong at api.example"))
    assert error.message == "the provider first refused the request: *** and *** are wrong at ***"


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "nan",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "1 Jan 2024 00:00:00 +99999999999999999999",
    ],
)
def test_a_retry_after_that_tells_no_time_is_none(text: str):
    assert read_retry_after({"retry-after": text}) is None
