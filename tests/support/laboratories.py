"""Whether emulated networks can be built here, and the environment of commands that build them."""

import os
import subprocess
import sys
from functools import cache

from tests.support.quadrille import ROOT

PROBE = """
from pyroute2 import IPRoute
with IPRoute() as kernel:
    kernel.link("add", ifname="probe0", kind="veth", peer={"ifname": "probe1"})
    (index,) = kernel.link_lookup(ifname="probe0")
    kernel.tc("add", "tbf", index, 0x10000, rate="10mbit", burst=16384, limit=65536)
    kernel.tc("add", "htb", index, 0x20000, parent=0x10001, default=0)
    kernel.tc("add-class", "htb", index, 0x20001, parent=0x20000, rate="32gbit", burst=1 << 20)
    told = {"parent": 0x20000, "protocol": 0x0800, "prio": 1, "target": 0x20001, "keys": ["0x0a4d0001/0xffffffff+12"]}
    kernel.tc("add-filter", "u32", index, **told)
"""


@cache
def unavailable_reason():
    """The reason why no laboratory can be built here; empty if the kernel offers namespaces, veth, tbf, htb and u32."""
    if os.environ.get("QUADRILLE_NO_LAB"):
        return "QUADRILLE_NO_LAB is set"
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "laboratories need root on Linux"
    words = ["unshare", "--net", "--uts", sys.executable, "-c", PROBE]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"this kernel or container makes none: {tried.stderr.splitlines()[-1:]}"


UNAVAILABLE_REASON = unavailable_reason()


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}
