"""Records of a prediction and of a run with the same options."""

import json

from tests.support.quadrille import called, quadrille


def predicted_and_run(capsys, folder, *words):
    """The records of a prediction and of a run of the same words on four ranks, and the output of the run."""
    words = [*words, "--verify", "--repeats", "1", "--warmups", "0"]
    predicted = called(capsys, "simulate", *words, "--json", "-")
    measured = quadrille("launch", "-n", "4", "run", *words, "--json", folder / "run.json")
    assert (predicted.status, measured.status) == (0, 0), measured.err
    return json.loads(predicted.out), json.loads((folder / "run.json").read_text()), measured.err
