"""Wrong words of `quadrille app`, and what becomes of a question that nobody waits for any more."""

import asyncio
import os
import signal
import socket
from types import SimpleNamespace

import psutil
import pytest

from quadrille.algorithms import optional_packages
from quadrille.algorithms.errors import InputError
from quadrille.app.answers import reply
from quadrille.app.questions import file_times
from quadrille.app.settings import NETWORK, NODE, Settings, knob_at_fault
from quadrille.app.workers import Workers
from quadrille.cli.main import main
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_catalogue import MACHINES

LARGE = Settings(gpus=1024, batch=1024).words()


@pytest.mark.parametrize("port", ["65536", "-1", "http", "", "8e3", "٣"])
def test_a_port_that_is_none_is_refused(port, capsys):
    assert main(["app", f"--port={port}"]) == 2
    assert "a whole number from 0 to 65535 is accepted" in capsys.readouterr().err


def test_a_port_in_use_is_refused(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["app", "--port", str(port)]) == 2
    assert capsys.readouterr().err.startswith(f"quadrille: --port {port}: Address already in use")


def test_a_missing_package_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None)
    monkeypatch.setattr(optional_packages, "is_clone", lambda root=None: False)
    assert main(["app"]) == 2
    assert "needs nicegui: pip install 'quadrille-hpc[app]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "knob"),
    [
        ({"micro_batch": 1024}, "micro_batch"),
        ({"tensor": 7, "gpus": 448}, "tensor"),
        ({"machine": "frontier", "node": 2.0}, "node"),
        ({"gpus": 500}, "gpus"),
        ({"model": "lama"}, "model"),
        ({"machine": "h100"}, "machine"),
        ({"zero": 7}, "zero"),
        ({"products": "fp8", "machine": "perlmutter"}, "products"),
        ({"more": "--foo"}, "more"),
    ],
)
def test_the_line_of_a_wrong_setting_stands_beside_its_knob(settings, knob, capsys):
    assert main(["simulate", *Settings(**settings).words()]) == 2
    assert knob_at_fault(capsys.readouterr().err.strip()) == knob


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(("knob", "path"), [("network", NETWORK), ("node", NODE)])
def test_a_slider_is_shown_only_where_the_machine_takes_its_number(name, knob, path):
    try:
        find_machine(name, [f"{path}=x2"], gpus=8)
        is_taken = True
    except InputError:
        is_taken = False
    assert is_taken or knob in Settings(machine=name).lacking
    if knob == "network":
        assert (knob in Settings(machine=name).lacking) == (MACHINES[name].gpus == MACHINES[name].gpus_per_node)


@pytest.mark.parametrize(("model", "has_experts"), [("llama3-8b", False), ("mixtral-8x7b", True)])
def test_experts_are_cut_only_in_models_with_experts(model, has_experts):
    settings = Settings(model=model, expert=4, expert_tensor=2)
    assert ("expert=4" in " ".join(settings.without_lacking().words())) == has_experts
    assert "expert=4,expert_tensor=2" in " ".join(settings.words())
    assert knob_at_fault("grid expert_tensor=2: accepted are 1") == "expert_tensor"


@pytest.mark.parametrize("more", ["'--zero", "--zero 1 job.toml"])
def test_further_words_that_are_no_flags_are_one_line_and_no_experiment_file(more):
    with pytest.raises(InputError, match="further flags"):
        Settings(more=more).experiment_file()


@pytest.mark.parametrize(("knob", "value"), [("model", "lama"), ("machine", "h100"), ("scheme", "5d"), ("zero", "7")])
def test_a_position_in_the_address_that_is_no_choice_is_one_line_at_its_knob(knob, value):
    pytest.importorskip("nicegui")
    from quadrille.app.knobs import check_choices

    with pytest.raises(InputError) as fault:
        check_choices(Settings.from_texts({knob: value}))
    assert knob_at_fault(str(fault.value)) == knob


def test_a_file_that_changes_makes_another_question(tmp_path):
    machine = tmp_path / "machine.toml"
    words = ("--machine", str(machine))
    times = []
    for second in (1, 2):
        machine.touch()
        os.utime(machine, (second, second))
        times.append(file_times(words))
        assert file_times((f"--machine={machine}",)) == times[-1]
    assert times[0] != times[1]


def test_a_question_that_is_given_up_ends_its_process_and_the_next_is_answered():
    async def give_up():
        workers = Workers(1)
        try:
            await workers.start()
            first = {child.pid for child in psutil.Process().children(recursive=True)}
            question = asyncio.create_task(workers.ask("prediction", LARGE))
            await asyncio.sleep(0.1)
            (worker,) = workers.processes()
            assert worker in first
            question.cancel()
            with pytest.raises(asyncio.CancelledError):
                await question
            assert not psutil.pid_exists(worker)
            answer = await workers.ask("estimate", LARGE)
            assert answer.is_estimate
            assert workers.kept("estimate", LARGE) is answer
        finally:
            workers.close()

    asyncio.run(give_up())


def test_an_estimate_that_takes_too_long_is_ended_with_a_line_and_the_next_is_answered(monkeypatch):
    pytest.importorskip("nicegui")
    from quadrille.app import page

    async def ask_a_stopped_process():
        workers = Workers(1)
        view = SimpleNamespace(_pools={"estimate": workers})
        try:
            await workers.start()
            (stopped,) = workers.processes()
            os.kill(stopped, signal.SIGSTOP)
            monkeypatch.setattr(page, "ESTIMATE_SECONDS", 0.2)
            assert await page.View._estimate(view, LARGE) == page.NO_ESTIMATE
            assert not psutil.pid_exists(stopped)
            monkeypatch.setattr(page, "ESTIMATE_SECONDS", 60.0)
            assert (await page.View._estimate(view, LARGE)).is_estimate
        finally:
            workers.close()

    asyncio.run(ask_a_stopped_process())


def test_a_prediction_that_waits_for_a_process_says_so_until_a_process_takes_it(monkeypatch):
    pytest.importorskip("nicegui")
    from quadrille.app import page

    lines = []
    monkeypatch.setattr(page, "_show_stage", lines.append)

    async def ask_twice():
        workers = Workers(1)
        view = SimpleNamespace(_pools={"prediction": workers})
        small = Settings(model="tiny", machine="h100-node", gpus=8, pipeline=1, tensor=1, batch=8, zero=0).words()
        try:
            await workers.start()
            long = asyncio.create_task(workers.ask("prediction", LARGE))
            await asyncio.sleep(0.1)
            assert workers.is_full
            short = asyncio.create_task(page.View._predict(view, small, page.ESTIMATE))
            await asyncio.sleep(0.1)
            assert lines == [page.WAITING]
            long.cancel()
            assert (await short).seconds > 0
            assert lines == [page.WAITING, page.ESTIMATE]
            lines.clear()
            assert (await page.View._predict(view, small, page.ESTIMATE)).seconds > 0
            assert lines == []
        finally:
            workers.close()

    asyncio.run(ask_twice())


def test_a_worker_that_dies_is_a_line_and_the_next_question_is_answered():
    async def ask_a_killed_process():
        workers = Workers(1)
        try:
            await workers.start()
            (killed,) = workers.processes()
            os.kill(killed, signal.SIGSTOP)
            question = asyncio.create_task(workers.ask("estimate", LARGE))
            await asyncio.sleep(0.1)
            os.kill(killed, signal.SIGKILL)
            refusal = await question
            assert refusal.line.startswith("the process that computed this answer has ended")
            assert (await workers.ask("estimate", LARGE)).is_estimate
        finally:
            workers.close()

    asyncio.run(ask_a_killed_process())


def test_an_answer_that_cannot_be_read_is_a_line_and_the_next_question_is_answered(monkeypatch):
    def refuse(*_question):
        raise TypeError("bad operand")

    async def ask_twice():
        workers = Workers(1)
        try:
            await workers.start()
            with monkeypatch.context() as patched:
                patched.setattr("quadrille.app.workers._Worker.ask", refuse)
                refusal = await workers.ask("estimate", LARGE)
            assert refusal.line == "the answer of the process cannot be read: bad operand"
            assert (await workers.ask("estimate", LARGE)).is_estimate
        finally:
            workers.close()

    asyncio.run(ask_twice())


def test_the_roofline_is_computed_for_a_report_from_the_answer_alone(tmp_path):
    machine = tmp_path / "machine.toml"
    assert main(["machines", "h100-node", "--toml", str(machine)]) == 0
    small = Settings(model="tiny", machine=str(machine), gpus=8, tensor=2, pipeline=2, batch=8, zero=0)
    answer = reply("prediction", small.words())
    titles = [section.title for section in answer.part.sections]
    assert not answer.is_of_changed_files
    machine.unlink()
    assert answer.is_of_changed_files
    completed = [section.title for section in reply("report", answer).part.sections]
    assert "Roofline" not in titles
    place = completed.index("Roofline")
    assert completed[:place] + completed[place + 1 :] == titles
    assert completed[place + 1] == "Ops"


def test_an_answer_has_the_remarks_of_the_command_line(capsys):
    words = Settings(model="tiny", machine="h100-node", gpus=16, tensor=8, pipeline=1, batch=8, zero=0).words()
    answer = reply("prediction", words)
    assert main(["simulate", *words, "--quiet"]) == 0
    said = [line.removeprefix("quadrille: ") for line in capsys.readouterr().err.splitlines()]
    assert list(answer.remarks) == said
    assert "h100-node has 8 GPUs: predicted as a larger machine of the same kind with 16" in said
