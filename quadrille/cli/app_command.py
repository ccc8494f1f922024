"""The command `app`: predictions in a browser, with knobs."""

from typing import Annotated

from quadrille.cli.app import app
from quadrille.cli.command_declarations import flag, switch


@app.command("app")
def open_app(
    port: Annotated[str, flag("--port", "N", "Port on 127.0.0.1; 0 for any free one.")] = "8080",
    open_browser: Annotated[bool, switch("--open", "Open the page in a browser.")] = False,
) -> None:
    """Turn the knobs of a prediction in a browser: model, machine and layout; time, memory and timeline at once.

    The page is served on 127.0.0.1 only, and needs no network. Ctrl-C ends it.
    """
    from quadrille.app.server import run_app

    run_app(port, opens_browser=open_browser)
