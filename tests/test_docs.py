import re
from pathlib import Path

from loraplex.platform.settings_reference import settings_reference

ROOT = Path(__file__).parent.parent


def test_the_settings_page_documents_every_setting_as_it_is() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_reference()


def test_the_architecture_page_stays_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 150


def test_every_document_that_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text()
    names = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_every_test_that_the_page_of_faults_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "public-faults.md").read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 50
    assert named - there == set()
