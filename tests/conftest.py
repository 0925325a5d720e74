"""Ends a run with the largest errors against float64 that its tests recorded, per dtype and test."""

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
