"""The page of the app: knobs on the left, and on the right the answer, beside a kept one to compare it with."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from urllib.parse import urlencode

import msgspec
from nicegui import app, run, ui
from starlette.requests import Request
from starlette.responses import Response

from quadrille.algorithms.errors import InputError
from quadrille.app.knobs import Knobs, check_choices
from quadrille.app.questions import Answer, Refusal, Reply, Words
from quadrille.app.settings import Settings
from quadrille.app.workers import MOST, Workers
from quadrille.experiments.report.elements import Section, sentence
from quadrille.experiments.report.page import drawing_script, page_style, sections_html
from quadrille.experiments.report.report import report_text
from quadrille.experiments.report.scripts import chart_scripts

FOLDER = Path(__file__).resolve().parent
MEMORY = ("Memory by kind",)
SHOWN = ("Timeline", "Exposed communication", "Network by axis", "Busiest links", "Time by cause", "Critical path")
"""Titles of the sections of a report that the page shows, in their order; the exported report has all."""
PAUSE_SECONDS = 0.25
"""Time after an estimate before the prediction starts, so that a moving slider starts none [s]."""
ESTIMATE_SECONDS = 2.0
"""The longest time of an estimate; after it the prediction follows without one [s]."""
ESTIMATE = "An estimate; the prediction follows."
NO_ESTIMATE = f"The estimate takes longer than {ESTIMATE_SECONDS:g} s and is given up; the prediction follows."
PLACES = ("compared", "now-head", "now-memory", "now-rest")
"""Elements that belong to the answer."""
WAITING = f"{MOST} predictions are under way for other pages or settings; this one waits for the first to end."
FIRST = "The first answer is being computed."
NO_ANSWER = "There is no answer yet."
NO_PREDICTION = "The prediction is still to come."
EARLIER = "This is of the shown answer; the knobs have other settings."
OLD_FILE = "A file that the command names has changed since this answer."
REFUSED = "No answer: a setting is refused, with the line beside its knob."
HEAD = (
    '<link rel="stylesheet" href="/quadrille/app.css"><script defer src="/quadrille/vega.js"></script>'
    '<script defer src="/quadrille/app.js"></script>'
)


def prepare_page() -> None:
    """Register the page, its scripts and its style, and start the workers with the server."""
    # Predictions of one page do not keep the estimates of another waiting.
    pools: dict[str, Workers] = {}

    async def start() -> None:
        pools.update(estimate=Workers(), prediction=Workers())
        await asyncio.gather(*(pool.start() for pool in pools.values()))

    def end() -> None:
        for pool in pools.values():
            pool.close()

    app.on_startup(start)
    app.on_shutdown(end)
    for name, kind, text in (
        ("vega.js", "text/javascript", f"(function () {{ {chart_scripts()} }})();"),
        ("app.js", "text/javascript", f"(function () {{ {drawing_script()}{_file('app.js')} }})();"),
        ("app.css", "text/css", page_style(".answer") + _file("app.css")),
    ):
        _serve(f"/quadrille/{name}", kind, text)
    ui.add_head_html(HEAD, shared=True)

    @ui.page("/")
    def index(request: Request) -> None:
        View(pools, request.query_params)


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _serve(path: str, kind: str, text: str) -> None:
    app.add_api_route(path, lambda: Response(text, media_type=kind), methods=["GET"])


class View:
    """One browser's page: its knobs, its answer, and the answer that it keeps to compare."""

    def __init__(self, pools: dict[str, Workers], texts: Mapping[str, str]) -> None:
        self._pools, self._client = pools, ui.context.client
        self._task: asyncio.Task[None] | None = None
        self._answer: Answer | None = None
        self._kept: tuple[Settings, Answer] | None = None
        self._shown: Settings | None = None
        with ui.element("div").classes("app"):
            with ui.element("nav").classes("knobs").props('aria-label="Settings"'):
                settings, line = _settings_of(texts)
                self._knobs = Knobs(settings, self._changed)
                self._knobs.show_fault(line)
            with ui.element("main").classes("answers"):
                self._build()
        self._client.on_disconnect(self._stop)
        self._client.on_connect(lambda: self._changed(self._knobs.settings))

    def _build(self) -> None:
        with ui.element("div").classes("exports"):
            self._button("Keep to compare", self._keep)
            self._button("Report", self._export_report)
            self._button("Experiment file", self._export_file)
            self._button("Copy the command", self._copy_command)
        ui.html("", sanitize=False).classes("answer").props('id="command"')
        self._compared = ui.html("", sanitize=False).classes("answer").props('id="compared"')
        self._panes = ui.element("div").classes("panes")
        with self._panes:
            ui.html(_pane_html("now", "Now"), sanitize=False).classes("answer").props("id=pane-now")
            kept = ui.element("div")
            with kept:
                ui.html(_pane_html("kept", "Kept"), sanitize=False).classes("answer").props("id=pane-kept")
                with ui.element("div").classes("exports"):
                    self._button("Turn the knobs back to it", self._turn_back)
                    self._button("Drop it", self._drop)
            kept.set_visibility(False)
            self._kept_place = kept

    def _button(self, text: str, action: object) -> None:
        ui.button(text, on_click=action).props("dense outline no-caps padding='2px 10px'")  # type: ignore[arg-type]

    def _changed(self, settings: Settings) -> None:
        """Ask for the answer to new settings; the question before is given up."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._renew(settings))

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _renew(self, settings: Settings) -> None:
        """Show the estimate, then the prediction."""
        with self._client:
            await self._ask(settings)

    async def _ask(self, settings: Settings) -> None:
        try:
            words = settings.words()
        except InputError as error:
            self._refuse(str(error))
            return
        kept = self._pools["prediction"].kept("prediction", words)
        if kept is None:
            _stale()
        _show_command(settings)
        if kept is None:
            estimate = await self._estimate(words)
            if isinstance(estimate, Refusal):
                self._refuse(estimate.line)
                return
            if isinstance(estimate, str):
                self._knobs.show_fault("")
                _show_stage(estimate)
            elif estimate is not None:
                self._show(settings, estimate)
            await asyncio.sleep(PAUSE_SECONDS)
            kept = await self._predict(words, estimate if isinstance(estimate, str) else ESTIMATE)
        if isinstance(kept, Refusal):
            self._refuse(kept.line)
        elif kept is not None:
            self._show(settings, kept)

    async def _estimate(self, words: Words) -> Reply | str:
        """The estimate, or a line that it takes too long; its process is ended then, and where the user moves on."""
        try:
            return await asyncio.wait_for(self._pools["estimate"].ask("estimate", words), ESTIMATE_SECONDS)
        except TimeoutError:
            return NO_ESTIMATE

    async def _predict(self, words: Words, stage: str) -> Reply:
        """The prediction; as long as all processes are busy, the page says so."""
        pool = self._pools["prediction"]
        if not pool.is_full:
            return await pool.ask("prediction", words)
        _show_stage(WAITING)
        return await pool.ask("prediction", words, begun=lambda: _show_stage(stage))

    def _refuse(self, line: str) -> None:
        """Show the line beside its knob; the last answer stays, greyed."""
        self._knobs.show_fault(line)
        if self._answer is None:
            _put("now-head", f"<p class='verdict'>{REFUSED}</p>", [], "")
        _stale()

    def _show(self, settings: Settings, answer: Answer) -> None:
        """Show the answer to settings; an estimate leaves the charts of the last prediction, greyed."""
        self._knobs.show_fault("")
        self._shown, self._answer = settings, answer
        address = f"?{urlencode(settings.texts())}"
        _run(f"history.replaceState(null, '', {msgspec.json.encode(address).decode()});")
        _show_pane("now", answer)
        self._compare()

    def _keep(self) -> None:
        if self._answer is None or self._answer.is_estimate or self._shown is None:
            ui.notify(NO_PREDICTION)
            return
        self._kept = self._shown, self._answer
        self._kept_place.set_visibility(True)
        self._panes.classes(add="two")
        _show_pane("kept", self._answer)
        _show_pane("now", self._answer)
        self._compare()

    def _turn_back(self) -> None:
        if self._kept is not None:
            self._knobs.set_all(self._kept[0])

    def _drop(self) -> None:
        self._kept = None
        self._kept_place.set_visibility(False)
        self._panes.classes(remove="two")
        if self._answer is not None:
            _show_pane("now", self._answer)
        self._compare()

    def _compare(self) -> None:
        """Show the figures of the kept answer beside those of the present one."""
        _run("document.getElementById('compared')?.classList.remove('stale');")
        if self._kept is None or self._answer is None or self._shown is None:
            self._compared.set_content("")
            return
        self._compared.set_content(comparison_html(self._kept, self._shown, self._answer))

    async def _export_report(self) -> None:
        """Download the report of the shown prediction, and of the kept one."""
        shown = self._exported()
        if shown is None:
            return
        if shown[1].is_estimate:
            ui.notify(NO_PREDICTION)
            return
        answers = [shown[1], *([self._kept[1]] if self._kept is not None else [])]
        if answers[-1].is_of_changed_files and not shown[1].is_of_changed_files:
            ui.notify(OLD_FILE)
        replies = await asyncio.gather(*(self._pools["estimate"].report(answer) for answer in answers))
        if refusal := next((reply for reply in replies if isinstance(reply, Refusal)), None):
            ui.notify(refusal.line)
            return
        parts = [reply.part for reply in replies if isinstance(reply, Answer)]
        text = await run.io_bound(report_text, parts, shown[0].command())
        ui.download.content(text or "", "report.html", "text/html")

    def _export_file(self) -> None:
        """Download the experiment file of the shown answer."""
        shown = self._exported()
        if shown is None:
            return
        try:
            text = shown[0].experiment_file()
        except InputError as error:
            ui.notify(str(error))
            return
        ui.download.content(text, "experiment.toml", "application/toml")

    def _copy_command(self) -> None:
        """Copy the command line of the shown answer."""
        shown = self._exported()
        if shown is not None:
            ui.clipboard.write(shlex.join(shown[0].command()))
            ui.notify("The command line is in the clipboard.")

    def _exported(self) -> tuple[Settings, Answer] | None:
        """The shown answer, of which every export is; a line says so where the knobs or a file have moved on."""
        if self._shown is None or self._answer is None:
            ui.notify(NO_ANSWER)
            return None
        if self._shown != self._knobs.settings:
            ui.notify(EARLIER)
        if self._answer.is_of_changed_files:
            ui.notify(OLD_FILE)
        return self._shown, self._answer


def _settings_of(texts: Mapping[str, str]) -> tuple[Settings, str]:
    """The settings of an address, and the line about what is wrong with it."""
    try:
        settings = Settings.from_texts(texts)
        check_choices(settings)
        return settings, ""
    except InputError as error:
        return Settings(), str(error)


def _pane_html(name: str, heading: str) -> str:
    return (
        f"<h2>{escape(heading)}</h2><div id='{name}-head' aria-live='polite'><p class='verdict'>{FIRST}</p></div>"
        f"<div id='{name}-memory'></div><div id='{name}-rest'></div>"
    )


def _show_pane(name: str, answer: Answer) -> None:
    """Put an answer into a pane; an estimate has no more than a verdict and the memory."""
    by_title = {section.title: section for section in answer.part.sections}
    head = f"<p class='verdict'>{escape(answer.part.verdict)}</p>"
    head += f"<p class='stage'>{ESTIMATE}</p>" if answer.is_estimate else ""
    head += _lines_html("reasons", answer.part.lines)
    if answer.remarks:
        head += "<p class='hint'>Remarks of quadrille simulate</p>"
        head += _lines_html("remarks", [sentence(line) for line in answer.remarks])
    memory = [by_title[title] for title in MEMORY if title in by_title]
    rest = [by_title[title] for title in SHOWN if title in by_title and by_title[title].charts]
    _put(f"{name}-head", head, [], "")
    _put_sections(f"{name}-memory", memory)
    if not answer.is_estimate:
        _put_sections(f"{name}-rest", rest)


def _stale() -> None:
    """Grey the answer and the comparison, which are those of earlier settings."""
    _run("".join(f"document.getElementById('{place}')?.classList.add('stale');" for place in PLACES))


def _show_command(settings: Settings) -> None:
    """Show the command line that asks the same question."""
    _put(
        "command", f"<pre tabindex='0' aria-label='Command line'>{escape(shlex.join(settings.command()))}</pre>", [], ""
    )


def _show_stage(line: str) -> None:
    """Say below the verdict what is under way."""
    _run(f"quadrille.stage('now-head', {msgspec.json.encode(line).decode()});")


def _lines_html(kind: str, lines: Sequence[str]) -> str:
    return f"<ul class='{kind}'>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _put_sections(place: str, sections: Sequence[Section]) -> None:
    html, entries = sections_html(sections, f"{place}-")
    _put(place, html, entries, f"{place}-")


def _put(place: str, html: str, entries: Sequence[object], prefix: str) -> None:
    """Put HTML into a place of the page, which is then no longer grey, and draw its charts."""
    arguments = ",".join(msgspec.json.encode(value).decode() for value in (place, html, entries, prefix))
    _run(f"document.getElementById('{place}')?.classList.remove('stale'); quadrille.show({arguments});")


def _run(script: str) -> None:
    ui.run_javascript(script)


def comparison_html(kept: tuple[Settings, Answer], settings: Settings, answer: Answer) -> str:
    """The table of two answers: the settings that differ, then their figures."""
    before, kept_answer = kept
    changed = [
        (field.name.replace("_", " "), _text(getattr(settings, field.name)), _text(getattr(before, field.name)))
        for field in fields(Settings)
        if getattr(settings, field.name) != getattr(before, field.name)
    ]
    names = dict.fromkeys((*kept_answer.figures, *answer.figures))
    figures = [(name, answer.figures.get(name, "-"), kept_answer.figures.get(name, "-")) for name in names]
    rows = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(now)}</td><td>{escape(then)}</td></tr>"
        for name, now, then in (*changed, *figures)
    )
    ratio = answer.seconds / kept_answer.seconds - 1 if kept_answer.seconds else 0.0
    more = "as long as" if abs(ratio) < 5e-4 else f"{abs(ratio):.1%} {'longer' if ratio > 0 else 'shorter'} than"
    return (
        f"<p class='verdict'>The step takes {more} the kept one.</p><table><thead><tr><td></td>"
        f"<th scope='col'>now</th><th scope='col'>kept</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
