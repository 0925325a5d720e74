"""Ends a run with the largest errors against float64 that its tests recorded, per dtype and test."""

from pathlib import Path

import pytest

PREFIX = "max_rel_error "


def pytest_terminal_summary(terminalreporter):
    worst = {}
    phases = [report for reports in terminalreporter.stats.values() for report in reports]
    for report in phases:
        if not hasattr(report, "user_properties"):
            continue
        test = report.nodeid.split("::")[-1].split("[")[0]
        place = (report.nodeid.split("/")[-1].split(".py")[0], test)
        for name, value in report.user_properties:
            if name.startswith(PREFIX):
                key = (*place, name.removeprefix(PREFIX))
                worst[key] = max(worst.get(key, 0.0), value)
    if worst:
        terminalreporter.section("largest error against float64, relative to the largest value of its row")
        for (module, test, dtype), value in sorted(worst.items()):
            terminalreporter.write_line(f"{dtype:>5} {value:9.2e}  {module}::{test}")


@pytest.fixture
def worst(record_property):
    """Largest error seen per dtype, reported with the test's result."""
    seen = {}
    yield seen
    for dtype, error in sorted(seen.items()):
        record_property(f"{PREFIX}{dtype}", error)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture
def golden(request):
    """Compares text with the golden file of that name, in tests/golden under the path of the test file."""
    folder = Path(__file__).parent / "golden" / Path(request.path).relative_to(Path(__file__).parent).with_suffix("")

    def check(name, text):
        path = folder / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: write it with pytest --update-golden"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs: look, then pytest --update-golden"

    return check
