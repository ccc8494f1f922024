"""The times from a move of a slider of the app to the estimate and to the prediction, at 1,024 GPUs: `make bench-app`.

A real browser moves the sliders.
"""

import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count, islice
from urllib.parse import urlencode

from quadrille.app.settings import Settings
from tests.support.browser import Browser

MOVES = {"estimate": 30, "prediction": 9}
"""Number of moves until each answer."""
KNOBS = ("network", "node", "micro_batch")
QUESTIONS = {
    "llama3-70b": Settings(gpus=1024, batch=2048),
    "mixtral-8x7b": Settings(model="mixtral-8x7b", gpus=1024, batch=2048, tensor=2, expert=8),
    "deepseek-v3": Settings(
        model="deepseek-v3", gpus=1024, batch=2048, tensor=1, pipeline=16, expert=64, scheme="megatron"
    ),
}
COMMAND = "document.querySelector('#command')?.innerText"
EARLIER = {"estimate": "#now-head.stale", "prediction": "#now-head.stale, #now-head .stage"}
"""Elements that are on the page before each answer."""
ANSWERED = (
    "new Promise(done => {{ const look = setInterval(() => {{ if ({command} !== {before!r} && "
    "!document.querySelector({earlier!r})) {{ clearInterval(look); done(true); }} }}, 5); }})"
)


def move_seconds(page, places, answer):
    """The time of each move until the page shows the new answer [s]; each place has a setting of its own."""
    for place in places:
        knob, back = KNOBS[place % len(KNOBS)], place // len(KNOBS) % 8 >= 4
        page.evaluate(f"document.querySelector('[data-knob={knob}] [tabindex]').focus()")
        before = page.evaluate(COMMAND)
        begun = time.perf_counter()
        page.key(*(("ArrowLeft", 37) if back else ("ArrowRight", 39)))
        page.evaluate(ANSWERED.format(command=COMMAND, before=before, earlier=EARLIER[answer]))
        yield time.perf_counter() - begun


def main():
    """Print the median and the worst time to each answer of each question."""
    words = [sys.executable, "-P", "-m", "quadrille", "app", "--port", "0"]
    with tempfile.TemporaryDirectory() as profile:
        server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
        page = Browser(profile)
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())[0]
            for name, settings in QUESTIONS.items():
                page.open(f"{address}/?{urlencode(settings.texts())}")
                page.wait(f"{COMMAND}?.includes('--gpt') && !document.querySelector('#now-head.stale')")
                places = count()
                for answer, moves in MOVES.items():
                    times = list(move_seconds(page, islice(places, moves), answer))
                    middle, worst = statistics.median(times), max(times)
                    print(f"{name}, {answer}: median {middle:.2f} s, worst {worst:.2f} s of {moves} moves", flush=True)
        finally:
            page.close()
            server.send_signal(signal.SIGINT)
            server.wait(timeout=30)


if __name__ == "__main__":
    main()
