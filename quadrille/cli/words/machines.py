"""The words that name a machine and what is different about it, and the machine that they come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quadrille.cli.words.flags import MatmulWords, TrainingWords

if TYPE_CHECKING:
    from quadrille.topologies.machines.machine import Machine

TOPOLOGY_FILES = (".json", ".xml")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineWords:
    """The words as they were typed; the defaults are those of the command line.

    Parameters
    ----------
    machine, settings : as `--machine` and `--set` name them
    routing : how flows find their way; by default as the machine says
    fail : links that carry nothing
    degrade, slow : `LINK=SHARE` of a bandwidth, `GPU=SHARE` of a speed
    """

    machine: str = ""
    settings: Sequence[str] = ()
    routing: str = ""
    fail: Sequence[str] = ()
    degrade: Sequence[str] = ()
    slow: Sequence[str] = ()

    @property
    def given(self) -> bool:
        """Whether any of them was given."""
        return self != MachineWords()

    @property
    def files(self) -> dict[str, str]:
        """The machine's or topology's file by its flag, which results must not overwrite; none where it has a name.

        >>> [MachineWords(machine=text).files for text in ("host.toml", "net.json", "alps", "star:hosts=4")]
        [{'--machine': 'host.toml'}, {'--machine': 'net.json'}, {}, {}]
        """
        if not self.machine:
            return {}
        from quadrille.topologies.machines.machine_catalogue import is_file_name

        is_file = is_file_name(self.machine) or self.machine.endswith(TOPOLOGY_FILES)
        return {"--machine": self.machine} if is_file else {}


def chosen_machine(words: MachineWords, gpus: int | None = None, *, topology_suffices: bool = False) -> "Machine":
    """The machine that the words name, with its faults, and its routing in full.

    >>> chosen_machine(MachineWords(machine="perlmutter", slow=["gpu:3=0.8"]), gpus=8).faults.slow
    {'gpu:3': 0.8}
    >>> star = MachineWords(machine="star:hosts=4,bandwidth=25e6", routing="ecmp")
    >>> chosen_machine(star, topology_suffices=True).routing
    'ecmp:0'

    Parameters
    ----------
    gpus : how many of a named machine's GPUs are modelled, by default all that it has
    topology_suffices : whether `--machine` may be a topology, as `topology show` takes them

    Raises
    ------
    InputError : an unknown name, a file that holds no machine, a setting, routing or fault that does not fit
    """
    import msgspec

    from quadrille.topologies.find_machine import find_machine, find_machine_or_topology
    from quadrille.topologies.machines.what_if import with_faults
    from quadrille.topologies.routes.routing import parse_routing

    find = find_machine_or_topology if topology_suffices else find_machine
    machine = find(words.machine, words.settings, gpus=gpus)
    if words.routing and words.routing != "balanced" and machine.topology.get("balanced"):
        # A rule chooses among the cables between groups, which a balanced network has as one.
        machine = msgspec.structs.replace(machine, topology={**machine.topology, "balanced": False})
    machine = with_faults(machine, fail=words.fail, degrade=words.degrade, slow=words.slow)
    return msgspec.structs.replace(machine, routing=str(parse_routing(words.routing or machine.routing)))


def with_default_dtype(words: MatmulWords, on: MachineWords) -> MatmulWords:
    """The words with bfloat16 where a GPT without a dtype is predicted on a machine that gives a speed for it."""
    if not isinstance(words, TrainingWords) or words.dtype:
        return words
    speeds = chosen_machine(replace(on, settings=())).device.peak_flops_per_second if words.gpt and on.machine else {}
    return replace(words, dtype="bfloat16" if "bfloat16" in speeds else "float32")
