"""The documents: numbers are recomputed, links lead somewhere, and lines that tests cannot run are few."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PAPER = (ROOT / "docs" / "paper.md").read_text()
PAIRS = re.findall(r"`([^`]+)` = (-?[\d.]+\d|\d)", PAPER)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the Python block of docs/paper.md defines."""
    (block,) = re.findall(r"```python\n(.*?)```", PAPER, re.DOTALL)
    found: dict[str, Any] = {}
    exec(block, found)
    return found


def test_the_page_has_its_numbers() -> None:
    assert len(PAIRS) > 70


@pytest.mark.parametrize(("formula", "printed"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_numbers_of_the_paper_page(names: dict[str, Any], formula: str, printed: str) -> None:
    digits = len(printed.partition(".")[2])
    value = eval(formula, names)
    assert f"{value:.{digits}f}" == printed


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda path: path.name)
def test_the_readme_leads_to_every_page(page: Path) -> None:
    assert f"docs/{page.name}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target
