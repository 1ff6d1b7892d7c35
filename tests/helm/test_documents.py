"""What people read about the chart is true of it."""

from tests.helm.chart import CHART, run_helm
from tests.helm.values_reference import PAGE, written_anew


def test_the_page_lists_every_value_with_its_default_and_meaning() -> None:
    assert PAGE.read_text() == written_anew(PAGE.read_text()), (
        "run `python tests/helm/values_reference.py`"
    )


def test_the_production_values_of_the_page_render() -> None:
    _, _, rest = PAGE.read_text().partition("# production.yaml\n")
    values, _, _ = rest.partition("```")
    done = run_helm("helm-4", "template", "release", str(CHART), "-f", "-", stdin=values)
    assert done.returncode == 0, done.stderr


def test_the_notes_name_the_objects_that_are_made() -> None:
    done = run_helm("helm-4", "install", "release", str(CHART), "--dry-run=client")
    assert done.returncode == 0, done.stderr
    _, _, notes = done.stdout.partition("NOTES:")
    assert "svc/release-loraplex " in notes
    assert "release-loraplex-data stays" in notes
    assert "SQLite" in notes
