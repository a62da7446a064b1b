"""Names of files on the hub: what is read, and what is refused before anybody is asked."""

import pytest

from antiphon.errors import SettingsError
from antiphon.weights.hub.reference import Reference, parse

COMMIT = "0123456789abcdef" * 2 + "01234567"


def test_a_reference_is_read_and_written_the_same():
    plain = parse("hf:ada/tiny-GGUF:Q4/tiny.Q4_K_M.gguf")
    assert plain == Reference("ada/tiny-GGUF", "Q4/tiny.Q4_K_M.gguf", "main")
    assert plain.name == "tiny.Q4_K_M" and not plain.is_pinned
    pinned = parse(f"hf:ada/tiny-GGUF@{COMMIT}:tiny.GGUF")
    assert pinned.revision == COMMIT and pinned.is_pinned
    request = parse("hf:ada/tiny-GGUF@refs/pr/1:tiny.gguf")
    assert request.revision == "refs/pr/1"
    for text in (str(plain), str(pinned), str(request)):
        assert str(parse(text)) == text


@pytest.mark.parametrize(
    "file",
    [
        "../secret.gguf",
        "a/../../secret.gguf",
        "/etc/secret.gguf",
        "a//b.gguf",
        "./a.gguf",
        "a\\b.gguf",
        "a\n.gguf",
        "x" * 200 + ".gguf",
    ],
)
def test_a_file_outside_the_repository_is_refused(file: str):
    with pytest.raises(SettingsError, match="not a file inside a repository"):
        parse(f"hf:ada/tiny:{file}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hf:tiny:a.gguf", "has no valid repository"),
        ("hf:../..:a.gguf", "has no valid repository"),
        ("hf:a/b/c:a.gguf", "has no valid repository"),
        ("hf:a/b--c:a.gguf", "has no valid repository"),
        ("hf:ada/.tiny:a.gguf", "has no valid repository"),
        ("ada/tiny:a.gguf", "has no valid repository"),
        ("hf:ada/tiny@:a.gguf", "has no valid revision"),
        ("hf:ada/tiny@../x:a.gguf", "has no valid revision"),
        ("hf:ada/tiny@a?b:a.gguf", "has no valid revision"),
        ("hf:ada/tiny", "has no file"),
        ("hf:ada/tiny:", "has no file"),
        ("hf:ada/tiny:model.safetensors", "not a GGUF file"),
        (
            "hf:ada/tiny@v1:q8/big-00002-of-00003.gguf",
            r"hf download ada/tiny --revision v1 --include 'q8/big-\*' .* models/q8/big-00001",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str):
    with pytest.raises(SettingsError, match=why):
        parse(text)


def test_a_model_in_one_part_is_whole():
    assert parse("hf:ada/tiny:big-00001-of-00001.gguf").file == "big-00001-of-00001.gguf"
