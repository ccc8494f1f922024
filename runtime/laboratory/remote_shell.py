"""The replacement of ssh in a laboratory (emulated network of namespaces): it runs a program on an emulated host.

mpirun calls it with the arguments that it would give to ssh.

    python -m quadrille.runtime.laboratory.remote_shell HOST WORDS …
    python -m quadrille.runtime.laboratory.remote_shell --agent [OPTIONS] ADDRESS WORDS …

With --agent it takes ssh's arguments: options, an address, and a command for a shell. It replaces itself by the program
(exec), so signals and exit status are those of the program.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from quadrille.algorithms.errors import InputError
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.host.world import LABORATORY
from quadrille.runtime.laboratory import namespaces
from quadrille.runtime.laboratory.register import MACHINE_REGISTER


def main(words: Sequence[str]) -> NoReturn:
    """Replace this process by a command on a host of the emulated network.

    Parameters
    ----------
    words : arguments of the command line, as above

    Raises
    ------
    InputError : a missing argument, an unknown host, or a laboratory that is not up
    """
    as_agent = words[:1] == ["--agent"]
    position = next((number for number, word in enumerate(words) if not word.startswith("-")), len(words))
    if len(words) < position + 2:
        raise InputError("a host of the laboratory and a command are needed")
    entry = MACHINE_REGISTER.read(os.environ.get(LABORATORY, ""))
    if entry is None:
        raise InputError(f"laboratory {os.environ.get(LABORATORY, '')!r} is not up")
    by_address = {address: host for host, address in entry.addresses.items()}
    host = by_address.get(words[position], words[position])
    if host not in entry.addresses:
        raise InputError(f"host {host!r} is not in laboratory {entry.name!r}: it has {', '.join(entry.addresses)}")
    namespaces.enter(entry.namespaces[host], f"{entry.name}-{host.replace(':', '')}")
    command = list(words[position + 1 :])
    if as_agent:
        # The words are for a shell, as ssh's are; Open MPI does not quote the path of its own folder in them.
        text = " ".join(command).replace(sys.prefix, shlex.quote(sys.prefix))
        os.execv("/bin/sh", ["sh", "-c", text])  # noqa: S606
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    run_as_program(lambda: main(sys.argv[1:]))
