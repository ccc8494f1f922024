"""The app in a real browser, a test for each story of a user; one server and one browser serve all."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import psutil
import pytest

from quadrille.app.settings import Settings
from quadrille.cli.main import main
from quadrille.experiments.report.report import parts_of_files
from tests.support.browser import CHROMIUM, Browser
from tests.support.quadrille import ROOT

pytest.importorskip("nicegui")
REFUSED = "No answer: a setting is refused, with the line beside its knob."
EARLIER = "This is of the shown answer; the knobs have other settings."
NO_ANSWER = "There is no answer yet."
OLD_FILE = "A file that the command names has changed since this answer."
EXPORTS = ("Copy the command", "Experiment file", "Report")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
SMALL = Settings(model="tiny", machine="h100-node", gpus=8, tensor=2, pipeline=2, batch=8, zero=0, scheme="4d")
VERDICT = "document.querySelector('#now-head .verdict')?.textContent"
TINY = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
"""A `config.json` of a small Llama."""
PREDICTED = (
    "document.querySelector('#now-rest')?.dataset.drawn > 0 && !document.querySelector('#now-rest.stale') "
    "&& !document.querySelector('.stage')"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server; afterwards Ctrl-C ends it and all its processes."""
    folder = tmp_path_factory.mktemp("server")
    words = [sys.executable, "-P", "-m", "quadrille", "app", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    server = subprocess.Popen(
        words, cwd=folder, env=environment | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())[0]
        children = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 130
        _, alive = psutil.wait_procs(children, timeout=30)
        assert children
        assert not alive
        assert server.stderr.read() == "quadrille: interrupted\n"
        assert not list(folder.iterdir())
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        server.stderr.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def page(browser, address):
    """The page with the small settings and their prediction; its console stays silent, and it asks nobody else."""
    browser.console.clear()
    browser.requests.clear()
    browser.open(f"{address}/?{urlencode(SMALL.texts())}")
    browser.wait(PREDICTED)
    yield browser
    browser.evaluate("1")
    assert browser.console == []
    assert browser.requests
    assert {url for url in browser.requests if not re.match(r"(https?|wss?)://127\.0\.0\.1[:/]|data:", url)} == set()


def simulated(settings, folder):
    """The part of a report about what `quadrille simulate` gives for the settings."""
    path = folder / "simulated.json"
    assert main(["simulate", *settings.words(), "--quiet", "--json", str(path)]) == 0
    return parts_of_files([str(path)])[0]


def shown_command(page):
    return page.evaluate("document.querySelector('#command').innerText").strip()


def test_model_machine_and_layout_show_the_verdict_memory_and_timeline_of_simulate(page, tmp_path, capsys):
    assert page.evaluate(VERDICT) == simulated(SMALL, tmp_path).verdict
    assert shown_command(page).split()[:4] == ["quadrille", "simulate", "--gpt", "tiny"]
    titles = page.evaluate("[...document.querySelectorAll('.answer h3')].map(e => e.textContent)")
    assert titles[:2] == ["Memory by kind", "Timeline"]
    drawn = page.evaluate("[...document.querySelectorAll('.chart')].map(e => e.querySelectorAll('svg path').length)")
    assert drawn
    assert all(drawn)


def test_a_slider_gives_a_new_answer_and_the_address_keeps_it(page, tmp_path, capsys):
    page.evaluate("document.querySelector('[data-knob=micro_batch] [tabindex]').focus()")
    page.key("ArrowRight", 39)
    page.wait("document.querySelector('#command').innerText.includes('--micro-batch 2')")
    page.wait(PREDICTED)
    moved = Settings.from_texts({**SMALL.texts(), "micro_batch": "2"})
    assert page.evaluate(VERDICT) == simulated(moved, tmp_path).verdict
    assert "micro_batch=2" in page.evaluate("location.search")


@pytest.mark.parametrize(
    ("knob", "texts"), [("gpus", {"gpus": "16"}), ("node", {"node": "1.5"})], ids=["GPUs", "bandwidth in a node"]
)
def test_other_sliders_give_the_answer_of_simulate_too(page, knob, texts, tmp_path, capsys):
    moved = Settings.from_texts({**SMALL.texts(), **texts})
    page.evaluate(f"document.querySelector('[data-knob={knob}] [tabindex]').focus()")
    page.key("ArrowRight", 39)
    page.wait(f"document.querySelector('#command').innerText.trim() === {shlex.join(moved.command())!r}")
    page.wait(PREDICTED)
    assert page.evaluate(VERDICT) == simulated(moved, tmp_path).verdict


def test_a_box_overlaps_communication_with_products(page, tmp_path, capsys):
    page.click("[data-knob=overlap] [role=checkbox]")
    page.wait("document.querySelector('#command').innerText.includes('--overlap oar')")
    page.wait(PREDICTED)
    moved = Settings.from_texts({**SMALL.texts(), "overlap": "oar"})
    assert page.evaluate(VERDICT) == simulated(moved, tmp_path).verdict


def test_the_command_is_the_new_one_at_once_and_the_old_answer_is_grey_until_the_new_one_is_there(page):
    page.evaluate(
        "window.greyAt = []; new MutationObserver(() => greyAt.push(!!document.querySelector('#now-head.stale')))"
        ".observe(document.querySelector('#command'), {childList: true})"
    )
    page.fill("[data-knob=batch] input", "24")
    page.wait("document.querySelector('#command').innerText.includes('--batch 24')")
    assert page.evaluate("greyAt") == [True]
    page.wait(PREDICTED)


def test_a_wrong_setting_shows_the_line_of_the_command_line_beside_its_knob_and_the_answer_stays(
    page, tmp_path, capsys
):
    verdict = page.evaluate(VERDICT)
    page.fill("[data-knob=tensor] input", "3")
    page.wait("!!document.querySelector('#now-rest.stale')")
    line = page.wait("document.querySelector('.fault:not(.hidden)')?.textContent")
    wrong = Settings.from_texts({**SMALL.texts(), "tensor": "3"})
    assert main(["simulate", *wrong.words()]) == 2
    assert capsys.readouterr().err.strip() == f"quadrille: {line}"
    assert page.evaluate(VERDICT) == verdict
    page.fill("[data-knob=tensor] input", "2")
    page.wait(PREDICTED)
    assert page.evaluate("document.querySelector('.fault:not(.hidden)')") is None


def click_button(page, text):
    page.evaluate(f"[...document.querySelectorAll('button')].find(e => e.innerText.trim() === {text!r}).click()")


def downloaded(page, path):
    """The path of a downloaded file, when it is there."""
    for _ in range(100):
        page.wait("new Promise(done => setTimeout(() => done(true), 200))")
        if path.is_file():
            break
    return path


def test_two_settings_are_compared_side_by_side(page, capsys):
    click_button(page, "Keep to compare")
    page.wait("document.querySelector('#kept-rest')?.dataset.drawn > 0")
    page.fill("[data-knob=pipeline] input", "1")
    page.wait("!document.querySelector('#command').innerText.includes('pipeline')")
    page.wait(PREDICTED)
    rows = page.wait(
        "[...document.querySelectorAll('#compared tbody tr')].map(row => [...row.children].map(e => e.innerText))"
    )
    assert rows[0] == ["pipeline", "1", "2"]
    now, kept = {row[0]: row[1:] for row in rows}["time"]
    assert now in page.evaluate(VERDICT)
    assert kept in page.evaluate("document.querySelector('#kept-head .verdict').textContent")
    click_button(page, "Turn the knobs back to it")
    page.wait("document.querySelector('[data-knob=pipeline] input').value === '2'")
    page.wait(PREDICTED)


def test_report_and_experiment_file_are_those_of_the_command_line(page, tmp_path, capsys):
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    click_button(page, "Experiment file")
    click_button(page, "Report")
    for name in ("experiment.toml", "report.html"):
        assert downloaded(page, tmp_path / name).is_file()
    record, report = tmp_path / "record.json", tmp_path / "cli.html"
    words = ["simulate", *SMALL.words()]
    assert main(["simulate", str(tmp_path / "experiment.toml"), "--quiet", "--json", str(record)]) == 0
    assert main([*words, "--quiet", "--report", str(report)]) == 0
    verdict = page.evaluate(VERDICT)
    assert parts_of_files([str(record)])[0].verdict == verdict
    exported, written = (charts_of(tmp_path / name) for name in ("report.html", "cli.html"))
    assert exported == written


def copied_command(page, address):
    """The command line that the page puts into the clipboard."""
    page.command(
        "Browser.grantPermissions", origin=address, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    page.command("Emulation.setFocusEmulationEnabled", enabled=True)
    click_button(page, "Copy the command")
    page.wait("[...document.querySelectorAll('.q-notification')].some(e => e.innerText.includes('clipboard'))")
    return page.evaluate("navigator.clipboard.readText()")


def test_the_copied_command_gives_the_shown_time(page, address, tmp_path):
    command = copied_command(page, address)
    assert command == shown_command(page)
    words = [sys.executable, "-P", "-m", *shlex.split(command), "--quiet", "--json", "record.json"]
    subprocess.run(words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    assert parts_of_files([str(tmp_path / "record.json")])[0].verdict == page.evaluate(VERDICT)


def export_all(page, line):
    """Export the shown answer in all ways; the page says a line at each, and shows how often it says it."""
    page.wait("!document.querySelector('.q-notification')")
    for text in EXPORTS:
        click_button(page, text)
    said = f"[...document.querySelectorAll('.q-notification')].find(e => e.innerText.includes({line!r}))"
    page.wait(f"{said}?.querySelector('.q-notification__badge')?.innerText === '{len(EXPORTS)}'")


def test_every_export_is_of_the_shown_answer_and_says_so_where_the_knobs_have_other_settings(page, address, tmp_path):
    verdict = page.evaluate(VERDICT)
    copied_command(page, address)
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.fill("[data-knob=tensor] input", "3")
    page.wait("!!document.querySelector('#now-rest.stale')")
    page.evaluate("navigator.clipboard.writeText('')")
    export_all(page, EARLIER)
    assert page.evaluate("navigator.clipboard.readText()") == shlex.join(SMALL.command())
    assert downloaded(page, tmp_path / "experiment.toml").read_text() == SMALL.experiment_file()
    report = downloaded(page, tmp_path / "report.html").read_text()
    assert verdict in report
    assert "x=3" not in report
    page.fill("[data-knob=tensor] input", "2")
    page.wait(PREDICTED)


def test_every_export_is_of_the_shown_answer_and_says_so_where_a_file_of_its_command_has_changed(
    page, address, tmp_path
):
    model = tmp_path / "config.json"
    model.write_text(json.dumps(TINY))
    with_file = replace(SMALL, more=f"--gpt {model}")
    page.open(f"{address}/?{urlencode(with_file.texts())}")
    page.wait(PREDICTED)
    verdict = page.evaluate(VERDICT)
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    model.write_text(json.dumps({**TINY, "num_hidden_layers": 8}))
    export_all(page, OLD_FILE)
    report = downloaded(page, tmp_path / "report.html")
    assert verdict in report.read_text()
    assert any("arithmetic intensity" in json.dumps(spec) for spec in charts_of(report))
    page.open(f"{address}/?{urlencode(SMALL.texts())}")
    page.wait(PREDICTED)


def charts_of(path):
    """The specifications of the charts of a report."""
    return json.loads(re.search(r'<script type="application/json" id="specs">(.*?)</script>', path.read_text())[1])


def shown_knobs(page):
    return page.evaluate("[...document.querySelectorAll('.knob')].filter(e => e.offsetHeight).map(e => e.dataset.knob)")


def test_knobs_that_the_machine_or_the_model_lacks_are_hidden(page, address):
    experts = {"expert", "expert_tensor", "network"}
    assert not experts & {*shown_knobs(page)}
    page.open(f"{address}/?{urlencode({'model': 'mixtral-8x7b', 'gpus': '16', 'pipeline': '1', 'batch': '8'})}")
    page.wait("document.querySelector('[data-knob=expert] input')?.offsetHeight > 0")
    assert experts <= {*shown_knobs(page)}
    page.open(f"{address}/?{urlencode(SMALL.texts())}")
    page.wait(PREDICTED)


def test_on_a_phone_the_settings_are_folded_until_they_are_asked_for(page):
    page.resize(390, 844, mobile=True)
    assert shown_knobs(page) == []
    page.click(".top button")
    page.wait("document.querySelector('[data-knob=model] input').offsetHeight > 0")
    page.fill("[data-knob=tensor] input", "3")
    page.wait("document.querySelector('.fault:not(.hidden)')?.textContent")
    page.click(".top button")
    assert "tensor" in shown_knobs(page)
    page.fill("[data-knob=tensor] input", "2")
    page.wait(PREDICTED)
    page.wait("document.querySelector('#settings').offsetHeight === 0")
    page.resize(1280, 800)


def test_the_network_is_drawn_by_axis(page):
    label = page.evaluate(
        "[...document.querySelectorAll('figcaption')].map(e => e.textContent).find(e => /along each axis/.test(e))"
    )
    assert "pipeline in a node" in label


def test_an_address_with_a_refused_setting_says_so_in_place_of_the_first_answer(page, address):
    page.open(f"{address}/?{urlencode({**SMALL.texts(), 'tensor': '3'})}")
    page.wait("document.querySelector('.fault:not(.hidden)')?.textContent")
    page.wait(f"{VERDICT} === {REFUSED!r}")
    export_all(page, NO_ANSWER)
    page.open(f"{address}/?{urlencode(SMALL.texts())}")
    page.wait(PREDICTED)


def test_an_address_with_a_wrong_knob_says_so(page, address):
    page.open(f"{address}/?tensors=2")
    assert page.wait("document.querySelector('.fault:not(.hidden)')?.textContent").startswith("tensors: is no knob")
    page.open(f"{address}/?{urlencode(SMALL.texts())}")
    page.wait(PREDICTED)


@pytest.mark.parametrize("header", [{"Host": "site.example"}, {"Origin": "http://site.example"}])
def test_a_page_of_another_site_is_refused(address, header):
    with pytest.raises(HTTPError) as fault:
        urlopen(Request(address, headers=header))
    with fault.value as refusal:
        assert refusal.code == 403


@pytest.mark.parametrize(
    ("size", "dark"), [((1280, 800), False), ((1280, 800), True), ((390, 844), False)], ids=["light", "dark", "phone"]
)
def test_nothing_is_cut_or_wider_than_the_window_and_every_control_has_a_name(page, size, dark):
    page.resize(*size, dark=dark, mobile=size[0] < 500)
    page.open(page.evaluate("location.href"))
    page.wait(PREDICTED)
    legends = page.evaluate("[...document.querySelectorAll('.role-legend text')].map(e => e.textContent)")
    assert "waiting and messages between pipeline stages" in legends
    assert [text for text in legends if "…" in text] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    nameless = (
        "[...document.querySelectorAll('button, input, [role=slider], [role=checkbox]')].filter(e => "
        "!(e.getAttribute('aria-label') || e.innerText?.trim() || e.closest('label, [role=checkbox]')))"
        ".map(e => e.outerHTML)"
    )
    assert page.evaluate(nameless) == []
    if folder := os.environ.get("QUADRILLE_SCREENSHOTS"):
        page.screenshot(Path(folder) / f"app-{size[0]}-{'dark' if dark else 'light'}.png")
    page.resize(1280, 800)
