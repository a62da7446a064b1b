"""A document is read in the sandbox: its text comes back, or one sentence tells what is wrong."""

import asyncio
import os

import pytest

from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, UnsupportedMediaType
from antiphon.retrieval.ingest.document_reader import extract
from antiphon.retrieval.ingest.documents import DEFAULT_LIMITS, DocumentFormat, ExtractedPage
from antiphon.retrieval.ingest.reading_job import read_document
from tests.support.processes import descendants
from tests.support.waiting import await_until

MARKDOWN = "# Title\n\nGrüße 漢字 😀\n"


async def test_a_text_comes_back(tmp_path):
    path = tmp_path / "upload"
    path.write_bytes(MARKDOWN.replace("\n", "\r\n").encode())
    read = await extract(path, "notes.md", "text/markdown")
    assert read.pages == (ExtractedPage(MARKDOWN),)
    assert (read.file_name, read.format, read.markdown) == ("notes.md", DocumentFormat.MARKDOWN, True)


def test_a_page_of_html_has_a_title():
    page = '<meta charset="latin-1"><title>Ü</title><h1>Ä</h1><p>ö'.encode("latin-1")
    read = read_document(page, "a.html")
    assert (read.title, read.markdown, read.pages[0].text) == ("Ü", True, "# Ä\n\nö")


@pytest.mark.parametrize(
    ("name", "data", "limits", "words"),
    [
        ("a.txt", b"", {}, "is empty"),
        ("a.txt", b" \n\t\n", {}, "has no text"),
        ("a.html", b"<script>x</script>", {}, "has no text"),
        ("a.txt", b"x" * 11, {"file_bytes": 10}, "has more than 10 bytes; split it"),
        ("a.txt", b"x" * 11, {"characters": 10}, "has 11 characters of text; the most is 10"),
    ],
)
def test_a_file_of_no_use_is_refused(name, data, limits, words):
    with pytest.raises(InvalidValue, match=words) as raised:
        read_document(data, name, "", replace(DEFAULT_LIMITS, **limits))
    assert raised.value.message.startswith(f"'{name}' ") and raised.value.param == "file"


@pytest.mark.parametrize(
    ("name", "data", "limits", "words"),
    [
        ("a.json", b"{", {}, "is not JSON"),
        (
            "a.json",
            b"[" + b"12345," * 2_000_000 + b"0]",
            {"memory_bytes": 150 << 20},
            "takes more than 150 MiB",
        ),
        (
            "a.json",
            b"[" + b"0," * 3_000_000 + b"0]",
            {"text_cpu_seconds": 0.2},
            "takes more than 0.2 s of computing",
        ),
    ],
)
async def test_what_cannot_be_read_in_the_sandbox_is_refused(tmp_path, name, data, limits, words):
    path = tmp_path / "upload"
    path.write_bytes(data)
    with pytest.raises(InvalidValue, match=words) as raised:
        await extract(path, name, "", replace(DEFAULT_LIMITS, **limits))
    assert raised.value.message.startswith(f"'{name}' ") and raised.value.param == "file"
    assert str(tmp_path) not in raised.value.message
    assert descendants(os.getpid(), "antiphon.processes.sandbox", recursive=False) == []


async def test_an_unknown_type_is_refused(tmp_path):
    path = tmp_path / "upload"
    path.write_bytes(b"x")
    with pytest.raises(UnsupportedMediaType, match="of a type that cannot be read"):
        await extract(path, "a.odt")


async def test_a_cancelled_reading_leaves_no_process(tmp_path):
    path = tmp_path / "upload"
    os.mkfifo(path)  # nobody writes into it, so the reading lasts

    def list_processes() -> list[int]:
        return descendants(os.getpid(), "antiphon.processes.sandbox", recursive=False)

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(extract(path, "a.json"))
        await await_until(list_processes)
        reading.cancel()
    assert reading.cancelled() and list_processes() == []
