"""Pages in a real browser: every chart draws marks, nothing is reported on the console, and a filter hides points."""

import contextlib
import os
import re
import shutil
import signal
import subprocess

import pytest

from quadrille.algorithms.formats.record import save_record
from quadrille.cli.experiment_commands import recorded_roofline
from quadrille.cli.main import main
from quadrille.experiments.report.elements import Part, Section, Table
from quadrille.experiments.report.page import page_text
from quadrille.experiments.report.pareto_chart import Point, pareto_section
from quadrille.experiments.report.report import parts_of_files
from tests.support.compared_records import MEASURED, PREDICTED

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
COLLECTIVE = "collective all-reduce --bytes 1MiB --gpus 8 --machine perlmutter"
SIMULATE = "simulate --matmul 512,512,512 --grid z=2,y=2,x=2 --machine perlmutter --quiet"
FILTERING = """
<script>
function choose() {
  if (!document.body.dataset.drawn) { setTimeout(choose, 50); return; }
  const count = () => document.querySelectorAll(".mark-symbol.role-mark path").length;
  const select = document.querySelector("select");
  document.body.dataset.before = count();
  select.selectedIndex = 1;
  select.dispatchEvent(new Event("change"));
  setTimeout(() => { document.body.dataset.after = count(); }, 200);
}
choose();
</script>
</body>
"""

ZOOMING = """
<script>
function enlarge() {
  if (!document.body.dataset.drawn) { setTimeout(enlarge, 50); return; }
  const button = document.querySelector('button[data-zoom="in"]');
  const width = () => { const [low, high] = views[button.dataset.chart].scale("x").domain(); return high - low; };
  const before = width();
  button.click();
  setTimeout(() => { document.body.dataset.zoom = (before / width()).toFixed(3); }, 300);
}
enlarge();
</script>
</body>
"""


MEASURING = """
<script>
const cells = [...document.querySelectorAll("tbody tr:last-child th")].map(cell => cell.getBoundingClientRect());
document.body.dataset.widths = cells.map(cell => Math.round(cell.width)).join(" ");
document.body.dataset.heights = cells.map(cell => Math.round(cell.height)).join(" ");
</script>
</body>
"""


def opened(path, profile):
    """The document of a page after its scripts have run, and what the browser's console says."""
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=20000"]
    words += ["--enable-logging=stderr", f"--user-data-dir={profile}", path.as_uri()]
    browser = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        document, log = browser.communicate(timeout=180)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
    return document, [line for line in log.splitlines() if "CONSOLE" in line]


def test_every_chart_has_marks_a_button_zooms_and_the_console_is_silent(tmp_path):
    files = ["--json", str(tmp_path / "one.json"), "--timeline", str(tmp_path / "one.timeline.json")]
    assert main([*SIMULATE.split(), *files]) == 0
    save_record(PREDICTED, tmp_path / "predicted.json")
    save_record(MEASURED, tmp_path / "measured.json")
    assert main([*COLLECTIVE.split(), "--json", str(tmp_path / "collective.json")]) == 0
    names = ("one", "predicted", "measured", "collective")
    parts = parts_of_files([str(tmp_path / f"{name}.json") for name in names], rooflines=recorded_roofline)
    assert "Roofline" in [section.title for section in parts[1].sections]
    page = page_text(parts, title="several", made_by="a test")
    (tmp_path / "one.html").write_text(ZOOMING.join(page.rsplit("</body>", 1)))
    document, console = opened(tmp_path / "one.html", tmp_path / "profile")
    assert console == []
    charts = re.split(r'<div class="chart[^"]*" id="chart-\d+"', document)[1:]
    assert re.search(r'data-drawn="(\d+)"', document)[1] == str(len(charts))
    assert len(charts) == sum(len(section.charts) for part in parts for section in part.sections)
    assert re.search(r'data-zoom="([^"]*)"', document)[1] == "2.000"
    for chart in charts:
        svg = re.search(r"<svg.*?</svg>", chart, re.DOTALL)[0]
        assert re.search(r'class="mark-(rect|rule|symbol)[^"]*role-mark[^"]*".*?<(path|line)', svg, re.DOTALL)


def test_a_filter_leaves_the_points_of_one_value(tmp_path):
    points = [Point(f"point {n}", 1.0 + n, 9.0 - n, 8, {"zero": "1" if n < 3 else "2"}) for n in range(7)]
    part = Part("Points", "There are seven.", [], [pareto_section(points, "Front")])
    page = FILTERING.join(page_text([part], title="points", made_by="a test").rsplit("</body>", 1))
    (tmp_path / "points.html").write_text(page)
    document, console = opened(tmp_path / "points.html", tmp_path / "profile")
    assert console == []
    assert re.search(r'data-before="(\d+)"', document)[1] == "7"
    assert re.search(r'data-after="(\d+)"', document)[1] == "3"


def test_a_column_of_places_is_narrow_and_a_column_of_names_is_not(tmp_path):
    tables = [Table(("#", "grid"), [("1", "x=2"), ("12", "x=4")]), Table(("op", "time"), [("sum over z", "2 s")])]
    part = Part("Tables", "There are two.", [], [Section("Both", tables=tables)])
    page = MEASURING.join(page_text([part], title="tables", made_by="a test").rsplit("</body>", 1))
    (tmp_path / "tables.html").write_text(page)
    document, _ = opened(tmp_path / "tables.html", tmp_path / "profile")
    places, names = map(int, re.search(r'data-widths="([^"]*)"', document)[1].split())
    assert places < 40 < 110 < names
    places, names = map(int, re.search(r'data-heights="([^"]*)"', document)[1].split())
    assert places == names
