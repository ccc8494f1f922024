"""How busy the cores of a machine were."""

import time

from quadrille.studies.laboratory_trials.trial_conditions import busy_seconds


def test_work_makes_cores_busy():
    kinds = ("user", "nice", "system")
    before, start = busy_seconds(*kinds), time.process_time()
    while time.process_time() - start < 0.1:
        pass
    assert busy_seconds(*kinds) - before >= 0.05
