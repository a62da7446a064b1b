"""The pages, the decision notes and the docstrings name what exists.

A name in code quotes is checked if it looks like one of ours: `a_name`, `AName`, `A_NAME`, `Class.member`, a
path, or a flag. A name exists if the code has its words outside of docstrings, wherever that is.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.architecture.source import ROOT, SRC, Function, Module, expect_none, modules, tracked
from tests.support.docs import FENCE

FOREIGN = set(
    """
    --enable-optimizations --gpus --max-logprobs --no-cache-dir --output-schema --publish --randomly-seed
    --stop-timeout ModelBehaviorError WebSearchTool small_model ANTIPHON_KEY
    ANTIPHON_NAME ANTIPHON_UPSTREAM_KEY CLAUDE_CODE_MAX_CONTEXT_TOKENS GGML_VK_VISIBLE_DEVICES
    HIP_VISIBLE_DEVICES KillMode MADV_COLLAPSE MALLOC_ARENA_MAX Metal OPENAI_API_BASE_URL OPENAI_BASE_URL
    OTEL_EXPORTER_OTLP_CERTIFICATE Output.object PyJWKClient RAY_USE_TLS Vulkan Warning ak_NAME
    ak_NAME_SECRET ak_jy66xrw8ap6b enable_load_extension histogram_quantile model_context_window
    no_new_privs shared_buffers
    top_n_sigma
    """.split()
)
"""Names of other programs, and examples."""

FOREIGN_FILES = set(
    """
    1_Pooling/config.json opencode.json antiphon-1.2.3-licenses.md antiphon-1.2.3.cdx.json bigram.py
    convert_lora_to_gguf.py limits.json names.json sentence_bert_config.json structured_outputs.json
    tokenizer.json tokenizer_config.json
    """.split()
)
"""Files that somebody else, or the running server, makes."""

LEFT_OUT = ("CHANGELOG.md", "docs/upgrade.md", "docs/from-", "benchmarks/RESULTS.md", "src/")
"""Pages that tell of earlier versions or of other programs, and model cards."""

GENERATED = [ROOT / "docs" / name for name in ("configuration.md", "engine-fields.md", "metrics.md")]
"""Pages that are made from code, which composes some of the names."""

TEXTS = {
    ".cfg",
    ".cmake",
    ".conf",
    ".css",
    ".html",
    ".jinja",
    ".js",
    ".json",
    ".mjs",
    ".py",
    ".toml",
    ".yaml",
    ".yml",
}
"""Suffixes of the files whose words are the names that exist. A file without a suffix counts, too."""

QUOTED = re.compile(r"`([^`\n]+)`")
WORD = re.compile(r"[A-Za-z_]\w*")
NAME = re.compile(
    r"(?<![\w/.*{-])(?:_?[a-z]\w*_\w*[a-z0-9]|[A-Z][a-z]+\d*[A-Z]\w*|[A-Z]+(?:_[A-Z]+)+)(?![\w*-])"
)
FLAG = re.compile(r"^--[a-z][a-z-]+")
CLASS = re.compile(r"[A-Z][a-z]+")
MEMBER = re.compile(r"\b([A-Z][a-z]\w+)\.([a-z_]\w*)")
DOTTED = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
FILE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|md|json|yml|yaml)|(?:[a-z_]+/)+")

Quote = tuple[str, str]
"""Where a name in code quotes is, and the text between the quotes."""


@cache
def list_files() -> tuple[str, ...]:
    """Lists the files of the repository without this one, which has names that are gone."""
    paths = {*tracked(), *SRC.rglob("*.py"), *(ROOT / "tests").rglob("*.py")} - {Path(__file__)}
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in paths))


def list_docstrings(module: Module) -> Iterator[ast.Constant]:
    for node in module.nodes:
        for statement in node.body if isinstance(node, ast.Module | ast.ClassDef | Function) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    yield text


@cache
def list_quotes() -> tuple[Quote, ...]:
    quotes = list[Quote]()
    for module in modules():
        for text in list_docstrings(module):
            quotes += ((f"{module.name}:{text.lineno}", quote) for quote in QUOTED.findall(str(text.value)))
    for path in list_files():
        if path.endswith(".md") and not path.startswith(LEFT_OUT):
            page = FENCE.sub("", (ROOT / path).read_text("utf-8"))
            quotes += ((path, quote) for quote in QUOTED.findall(page))
    return tuple(quotes)


def list_code_words(module: Module) -> set[str]:
    """Lists the words of a module without its docstrings and the lines that are comments."""
    lines = module.text.splitlines()
    for text in list_docstrings(module):
        lines[text.lineno - 1 : text.end_lineno] = [""] * ((text.end_lineno or text.lineno) - text.lineno + 1)
    return set(WORD.findall("\n".join(line for line in lines if not line.lstrip().startswith("#"))))


@cache
def list_words() -> frozenset[str]:
    words = set[str]().union(*map(list_code_words, modules()))
    for path in list_files():
        if Path(path).suffix in TEXTS | {""} and not path.startswith(
            ("src/antiphon/", "requirements/", "docs/")
        ):
            words.update(WORD.findall((ROOT / path).read_text("utf-8")))
    words.update(Path(path).stem for path in list_files())
    for page in GENERATED:
        words.update(WORD.findall(page.read_text("utf-8")))
    return frozenset(words)


@cache
def list_flags() -> frozenset[str]:
    places = ["docs/cli.md", "pyproject.toml", *(path for path in list_files() if path.endswith(".py"))]
    return frozenset(
        flag for place in places for flag in re.findall(r"--[a-z][a-z-]+", (ROOT / place).read_text("utf-8"))
    )


def find_missing_names(quotes: Iterable[Quote]) -> Iterator[str]:
    words, flags = list_words(), list_flags()
    for place, quote in quotes:
        named = {*NAME.findall(quote), *([quote] if CLASS.fullmatch(quote) else [])}
        missing = {name for name in named if name.removesuffix("_bucket") not in words}
        missing -= {name for name in missing if name.endswith("_API_KEY")}
        missing |= {*FLAG.findall(quote)} - flags
        yield from (f"{place} names `{name}`, which is nowhere" for name in sorted(missing - FOREIGN))


@cache
def list_members() -> dict[str, set[str]]:
    """Lists the members of every class by its name, those of its bases among them."""
    members, bases = dict[str, set[str]](), dict[str, set[str]]()
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                names = members.setdefault(node.name, set())
                bases.setdefault(node.name, set()).update(
                    WORD.findall(
                        " ".join(map(ast.unparse, [*node.bases, *(each.value for each in node.keywords)]))
                    )
                )
                for inner in ast.walk(node):
                    match inner:
                        case ast.Name(id=name) | ast.Attribute(attr=name):
                            names.add(name)
                        case (
                            ast.FunctionDef(name=name)
                            | ast.AsyncFunctionDef(name=name)
                            | ast.ClassDef(name=name)
                        ):
                            names.add(name)
    for owner, names in members.items():
        ancestors, waiting = set[str](), {*bases[owner]}
        while waiting:
            ancestors |= waiting
            waiting = set[str]().union(*(bases.get(each, set()) for each in waiting)) - ancestors
        names.update(*(members.get(each, set()) for each in ancestors))
    return members


def find_missing_members(quotes: Iterable[Quote]) -> Iterator[str]:
    for place, quote in quotes:
        for owner, member in MEMBER.findall(quote if quote not in FOREIGN else ""):
            if owner in list_members() and member not in list_members()[owner]:
                yield f"{place} names `{owner}.{member}`, and {owner} has no {member}"


def find_missing_files(quotes: Iterable[Quote]) -> Iterator[str]:
    files = [f"/{path}" for path in list_files()]
    folders = {parent.as_posix() + "/" for file in files for parent in Path(file).parents}
    for place, quote in quotes:
        checked = FILE.fullmatch(quote) and "NAME" not in quote and quote not in FOREIGN_FILES
        if checked and not any(each.endswith(f"/{quote}") for each in (*files, *folders)):
            yield f"{place} names `{quote}`, which is no file"


@cache
def list_code() -> dict[str, set[str]]:
    return {module.name: list_code_words(module) for module in modules()}


def find_missing_modules(quotes: Iterable[Quote]) -> Iterator[str]:
    """Finds dotted names in docstrings that begin as a module does, and are no module and nothing in one."""
    code = list_code()
    settings = set[str]().union(*(code[name] for name in code if name.startswith("antiphon.settings")))
    packages = {name.split(".")[1] for name in code if "." in name}
    for place, quote in quotes:
        name = f"antiphon.{quote.removeprefix('antiphon.')}"
        parent, _, last = name.rpartition(".")
        checked = DOTTED.fullmatch(quote) and name.split(".")[1] in packages
        is_setting = quote.count(".") == 1 and last in settings
        if checked and not is_setting and name not in code and last not in code.get(parent, ()):
            yield f"{place} names `{quote}`, which is no module"


def test_every_name_exists():
    expect_none(find_missing_names(list_quotes()))


def test_every_member_exists():
    expect_none(find_missing_members(list_quotes()))


def test_every_module_exists():
    expect_none(find_missing_modules(quote for quote in list_quotes() if quote[0].startswith("antiphon")))


def test_every_file_exists():
    expect_none(find_missing_files(list_quotes()))


def test_a_name_that_is_gone_is_found():
    there = "Engine VendorEngine expect_none ANTIPHON_HOME antiphon_engine_up --workers"
    gone = "Enginerie VendorEnginerie expect_nobody ANTIPHON_HOUSE antiphon_engine_upp --wurkers"
    assert not list(find_missing_names(("a page", each) for each in there.split()))
    for each in gone.split():
        assert list(find_missing_names([("a page", each)])) == [f"a page names `{each}`, which is nowhere"]


def test_a_member_or_file_that_is_gone_is_found():
    assert not list(find_missing_members([("a page", "Pipeline.run"), ("a page", "Nothing.of_ours")]))
    assert len(list(find_missing_members([("a page", "Pipeline.walk")]))) == 1
    for name in (
        "pipeline.run",
        "antiphon.engines.host",
        "pipeline.run.start_generation",
        "media.fetch",
        "a.b",
    ):
        assert not list(find_missing_modules([("a page", name)]))
    assert list(find_missing_modules([("a page", "pipeline.walk")])) == [
        "a page names `pipeline.walk`, which is no module"
    ]
    assert not list(
        find_missing_files(("a page", each) for each in ("pipeline/run.py", "run.py", "pipeline/", "`a b`"))
    )
    assert len(list(find_missing_files(("a page", each) for each in ("pipeline/walk.py", "pipelines/")))) == 2
