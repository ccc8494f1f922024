"""From flags to the machine that they describe: `--machine`, `--set`, `--routing` and the faults."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quadrille.cli.parsing.flags import MatmulFlags, TrainingFlags

if TYPE_CHECKING:
    from quadrille.topologies.machines.machine import Machine

TOPOLOGY_FILES = (".json", ".xml")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFlags:
    """The flags of a machine as typed, with the defaults of the command line.

    Parameters
    ----------
    machine, settings : values of `--machine` and `--set`
    routing : routing rule; by default the machine's
    fail : failed links
    degrade, slow : `LINK=SHARE` for a share of a link's bandwidth, `GPU=SHARE` for a share of a GPU's speed
    """

    machine: str = ""
    settings: Sequence[str] = ()
    routing: str = ""
    fail: Sequence[str] = ()
    degrade: Sequence[str] = ()
    slow: Sequence[str] = ()

    @property
    def given(self) -> bool:
        """Whether any of these flags was typed."""
        return self != MachineFlags()

    @property
    def files(self) -> dict[str, str]:
        """The file of the machine or topology by its flag, which results must not overwrite; empty for a named one.

        >>> [MachineFlags(machine=text).files for text in ("host.toml", "net.json", "alps", "star:hosts=4")]
        [{'--machine': 'host.toml'}, {'--machine': 'net.json'}, {}, {}]
        """
        if not self.machine:
            return {}
        from quadrille.topologies.machines.machine_catalogue import is_file_name

        is_file = is_file_name(self.machine) or self.machine.endswith(TOPOLOGY_FILES)
        return {"--machine": self.machine} if is_file else {}


def chosen_machine(flags: MachineFlags, gpus: int | None = None, *, topology_suffices: bool = False) -> "Machine":
    """The machine that the flags describe, with its faults, and its routing rule with the seed.

    >>> chosen_machine(MachineFlags(machine="perlmutter", slow=["gpu:3=0.8"]), gpus=8).faults.slow
    {'gpu:3': 0.8}
    >>> star = MachineFlags(machine="star:hosts=4,bandwidth=25e6", routing="ecmp")
    >>> chosen_machine(star, topology_suffices=True).routing
    'ecmp:0'

    Parameters
    ----------
    flags : flags of the machine
    gpus : number of GPUs of a named machine that are modelled; all by default
    topology_suffices : whether `--machine` may be a topology, as in `topology show`

    Raises
    ------
    InputError : an unknown name, a file that holds no machine, a setting, routing or fault that does not fit
    """
    import msgspec

    from quadrille.topologies.find_machine import find_machine, find_machine_or_topology
    from quadrille.topologies.machines.what_if import with_faults
    from quadrille.topologies.routes.routing import parse_routing

    find = find_machine_or_topology if topology_suffices else find_machine
    machine = find(flags.machine, flags.settings, gpus=gpus)
    if flags.routing and flags.routing != "balanced" and machine.topology.get("balanced"):
        # A rule chooses among the cables between groups, which a balanced network has as one.
        machine = msgspec.structs.replace(machine, topology={**machine.topology, "balanced": False})
    machine = with_faults(machine, fail=flags.fail, degrade=flags.degrade, slow=flags.slow)
    return msgspec.structs.replace(machine, routing=str(parse_routing(flags.routing or machine.routing)))


def with_default_dtype(flags: MatmulFlags, on: MachineFlags) -> MatmulFlags:
    """The flags with the default dtype: bfloat16 for a GPT on a machine with a bfloat16 speed, else float32."""
    if not isinstance(flags, TrainingFlags) or flags.dtype:
        return flags
    speeds = chosen_machine(replace(on, settings=())).device.peak_flops_per_second if flags.gpt and on.machine else {}
    return replace(flags, dtype="bfloat16" if "bfloat16" in speeds else "float32")
