"""The server of the app on 127.0.0.1: its address is checked, its processes are started, and Ctrl-C ends all."""

import asyncio
import os
import socket
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.optional_packages import check_installed
from quadrille.experiments.report.scripts import check_packages
from quadrille.runtime.host.console import remark

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
"""Names of this computer in addresses of the page."""
LOOK_SECONDS = 0.02
MOST_PORT = 65_535


def parse_port(text: str) -> int:
    """The number of a port; 0 is any free port.

    Raises
    ------
    InputError : no whole number from 0 to 65535
    """
    if not (text.isascii() and text.isdecimal()) or int(text) > MOST_PORT:
        raise InputError(f"--port {text!r:.40}: a whole number from 0 to {MOST_PORT} is accepted (0: any free port)")
    return int(text)


def free_port(port: int) -> int:
    """The port itself, or a free one for 0.

    Raises
    ------
    InputError : a port that is in use, or that this user may not open
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except PermissionError:
            raise InputError(f"--port {port}: this user may not open it: a port from 1024 is accepted") from None
        except OSError as error:
            raise InputError(f"--port {port}: {error.strerror}: another port is accepted, or 0 for any") from None
        return int(probe.getsockname()[1])


def run_app(port_text: str, *, opens_browser: bool) -> None:
    """Serve the app until Ctrl-C.

    Parameters
    ----------
    opens_browser : whether a browser is opened with the page

    Raises
    ------
    InputError : a wrong port, or a missing package
    """
    port = parse_port(port_text)
    check_installed("nicegui")
    check_packages()
    port = free_port(port)
    with _storage_elsewhere():
        from nicegui import app, background_tasks, ui

        from quadrille.app.page import prepare_page

        app.add_middleware(OwnPageOnly)
        prepare_page()
        app.on_startup(lambda: background_tasks.create(_announce(f"http://{HOST}:{port}", opens_browser=opens_browser)))
        ui.run(
            host=HOST,
            port=port,
            title="Quadrille",
            dark=None,
            show=False,
            reload=False,
            show_welcome_message=False,
            tailwind=False,
            favicon="▦",
            uvicorn_logging_level="critical",
            timeout_graceful_shutdown=0,
        )


class OwnPageOnly:
    """A server that answers this computer's own page only: no page of another site may ask, by whatever name.

    A name of another site that leads to 127.0.0.1 is refused, and so is a page of another origin.
    """

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        from starlette.datastructures import Headers
        from starlette.responses import PlainTextResponse

        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            if not is_own_page(headers.get("host", ""), headers.get("origin", "")):
                await PlainTextResponse("not this computer's own page", status_code=403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_own_page(host: str, origin: str) -> bool:
    """Whether a request comes from the app's own page.

    >>> is_own_page("localhost:8080", ""), is_own_page("127.0.0.1:80", "http://127.0.0.1:80")
    (True, True)
    >>> is_own_page("site.example:8080", ""), is_own_page("127.0.0.1:80", "https://site.example")
    (False, False)

    Parameters
    ----------
    host : name and port by which the server was asked
    origin : origin of the page that asks; empty for an address that a user opens
    """
    return host.partition(":")[0] in NAMES and (not origin or urlsplit(origin).netloc == host)


@contextmanager
def _storage_elsewhere() -> Iterator[None]:
    """A context in which NiceGUI keeps its files in a folder of its own, not in the current folder."""
    with tempfile.TemporaryDirectory(prefix="quadrille-app-") as folder:
        os.environ["NICEGUI_STORAGE_PATH"] = folder
        yield


async def _announce(address: str, *, opens_browser: bool) -> None:
    """Print the address as soon as the server answers, and open a browser if that is wanted."""
    from nicegui.server import Server

    while not Server.instance.started:
        await asyncio.sleep(LOOK_SECONDS)
    remark(f"the app is at {address} (Ctrl-C ends it)")
    if opens_browser and not webbrowser.open(address):
        remark("--open: no browser is known here; open the address yourself")
