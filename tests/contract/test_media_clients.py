"""Pictures by the products' own clients, unchanged, to a tiny local model with a projector."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.make_media_model import write_projector, write_text_model
from tests.contract.clients import Client
from tests.contract.jamai.caller import Base
from tests.contract.sgp.caller import CHAT, OLD_CHAT, OLD_TEXT, Scale, list_fields
from tests.support.media_files import draw
from tests.support.server import Server, serving

DATA = base64.b64encode(draw(224, 224)).decode()
URL = f"data:image/png;base64,{DATA}"
IMAGE: Any = {"type": "image_url", "image_url": {"url": URL}}
IMAGE_TOKENS = 64
"""The tokens of a picture of 224 by 224 pixels in this family."""

FIREWORKS = {
    "client": ("fireworks-client/bin/python", "/fireworks/inference/v1", "Completion.create"),
    "sdk": ("fireworks/bin/python", "/fireworks/inference", "Fireworks.completions.create"),
}
"""The interpreter of each line of fireworks-ai, where its base URL ends, and the call."""

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server, and each a client's interpreter."""


@pytest.fixture(scope="module")
def owl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("owl")
    text = write_text_model(folder / "text.gguf", "qwen2vl")
    projector = write_projector(folder / "mmproj.gguf", "qwen2vl")
    with serving("--model", f"owl={text}", "--mmproj", str(projector), "--context-length", "2048") as server:
        yield server


@pytest.mark.parametrize("line", FIREWORKS)
def test_images_of_a_text_completion_act_through_fireworks_ai(owl: Server, line: str) -> None:
    interpreter, path, name = FIREWORKS[line]
    usual: Any = {"model": "owl", "max_tokens": 6, "temperature": 0}
    bodies = (
        {"prompt": "Look: <image> It is", "images": [URL]},
        {"prompt": "Look:  It is"},
        {"prompt": "Look: <image> It is", "images": [URL, URL]},
        {"prompt": "Look: <image> It is", "images": [URL[:-40]]},
    )
    calls = [{"call": name, "with": usual | body} for body in bodies]
    told = {"base_url": owl.url + path, "line": line, "calls": calls}
    seen, blind, more, broken = Client(interpreter, "fireworks/drive.py").run(told)
    counts = [result["answer"]["usage"]["prompt_tokens"] for result in (seen, blind)]
    assert counts[0] >= counts[1] + IMAGE_TOKENS
    assert seen["answer"]["choices"][0]["text"] != ""
    assert more["error"]["body"]["error"]["param"] == "images"
    assert broken["error"]["body"]["error"]["param"] == "images[0]"
    assert "is damaged, or not whole" in broken["error"]["body"]["error"]["message"]


def test_parts_act_through_scale_gp(owl: Server) -> None:
    scale = Scale(owl.url, "none", "owl", strict=False)
    picture = {"data": DATA, "media_type": "image/png"}
    short: Any = {"model_parameters": {"temperature": 0, "max_tokens": 4}}
    old_part = {"type": "image_data", "image_data": picture}
    new, old, text = scale.call(
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}], "temperature": 0, "max_tokens": 4}),
        (OLD_CHAT, short | {"messages": [{"role": "user", "content": [old_part]}]}),
        (OLD_TEXT, short | {"prompt": "What is it?", "images": [{"image_url": URL}]}),
    )
    assert new["answer"]["usage"]["prompt_tokens"] > IMAGE_TOKENS, new
    for result in (old, text):
        assert result["answer"]["token_usage"]["prompt"] > IMAGE_TOKENS, result
    broken = {"url": URL[:-40]}
    (refused,) = scale.call(
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": broken}]}]})
    )
    assert list_fields(refused) == ["messages.0.content.0.image_url"]


def test_parts_act_through_jamaibase(owl: Server) -> None:
    base = Base(owl.url, "none", "antiphon/owl")
    question = {"type": "text", "text": "What is it?"}
    seen, blind = base.answers(
        {"messages": [{"role": "user", "content": [question, IMAGE]}], "max_tokens": 4},
        {"messages": [{"role": "user", "content": [question]}], "max_tokens": 4},
    )
    assert seen["usage"]["prompt_tokens"] >= blind["usage"]["prompt_tokens"] + IMAGE_TOKENS
