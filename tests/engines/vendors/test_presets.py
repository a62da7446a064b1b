"""The presets of providers: whole, in the vocabulary of parameters, and honest about keys and addresses."""

from urllib.parse import urlsplit

import msgspec
import pytest

from antiphon.engines.vendors.parameters import PART_PARAMETERS, list_names
from antiphon.engines.vendors.profiles import ProviderPreset, find_preset, list_presets, read_presets

VENDORS = "openai anthropic gemini xai mistral groq deepseek together fireworks openrouter cohere".split()
SERVERS = "vllm sglang llama-server ollama antiphon".split()


def test_every_promised_preset_is_there():
    assert set(list_presets()) == {*VENDORS, *SERVERS, "azure"}


def test_an_unknown_name_has_no_preset():
    assert find_preset("nobody") is None


@pytest.mark.parametrize("name", VENDORS)
def test_a_vendor_has_a_public_address_and_needs_a_key(name: str):
    preset = read_presets()[name]
    address = urlsplit(preset.base_url or "")
    assert address.scheme == "https" and not address.query and not preset.is_private
    assert preset.needs_key and preset.key_variable.endswith("_API_KEY")


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_of_ones_own_is_on_this_machine(name: str):
    preset = read_presets()[name]
    assert urlsplit(preset.base_url or "").hostname == "127.0.0.1"
    assert preset.is_private and not preset.needs_key


def test_azure_has_no_common_address_and_another_header():
    azure = read_presets()["azure"]
    assert azure.base_url is None
    assert (azure.key_header, azure.key_prefix, azure.table) == ("api-key", "", "openai")


@pytest.mark.parametrize("name", list_presets())
def test_parameters_have_names_that_requests_can_ask_for(name: str):
    preset = read_presets()[name]
    assert {*preset.takes, *preset.refuses, *preset.renames} <= list_names() | PART_PARAMETERS
    assert not set(preset.takes) & set(preset.refuses)
    assert list(preset.takes) == sorted(preset.takes)
    assert list(preset.refuses) == sorted(preset.refuses)


def test_vllm_takes_what_its_reference_documents():
    vllm = read_presets()["vllm"]
    assert {"top_k", "min_p", "stop_token_ids", "guided_regex"} <= set(vllm.takes)
    assert "best_of" in vllm.refuses


def test_a_misspelt_field_of_a_preset_is_an_error():
    with pytest.raises(msgspec.ValidationError, match="bearer"):
        msgspec.convert({"kind": "openai", "key_variable": "K", "bearer": True}, ProviderPreset)


TAKE_SUFFIX = {"openai", "azure", "deepseek", "ollama", "antiphon"}
"""The presets whose references tell that text completions have `suffix`."""


def test_a_suffix_that_a_server_would_ignore_is_refused():
    presets = read_presets().items()
    taking = {name for name, each in presets if each.kind == "openai" and "suffix" not in each.refuses}
    assert taking == TAKE_SUFFIX
