"""The Python in the documents runs, block by block in one namespace a document, and prints what they say."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_the_document_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # what it writes is gone afterwards
    text = document.read_text(encoding="utf-8")
    module = ModuleType("document")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where a dataclass looks up its annotations
    for block in BLOCK.finditer(text):
        above = text.count("\n", 0, block.start(1))
        if not block[1].startswith(">>> "):
            exec(compile("\n" * above + block[1], named(document), "exec"), vars(module))
            continue
        told = doctest.DocTestParser().get_doctest(block[1], vars(module), named(document), named(document), above)
        said: list[str] = []
        result = doctest.DocTestRunner(verbose=False).run(told, out=said.append, clear_globs=False)
        assert result.failed == 0, "".join(said)
        vars(module).update(told.globs)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_the_links_of_the_document_lead_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []
