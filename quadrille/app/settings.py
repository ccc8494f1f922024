"""`Settings`: the positions of the app's knobs, and the command line that asks the same question.

A knob is a flag of `quadrille simulate`, so whatever the app shows can be repeated in a terminal.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from quadrille.algorithms.errors import InputError, nearest_hint
from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.experiments.report.repeat import experiment_file
from quadrille.topologies.machines.machine_catalogue import MACHINES

OVERLAPS = ("oar", "ors", "oag", "ogr", "opg")
SCHEMES = {
    "4d": "4D",
    "megatron": "Megatron (tensor parallelism)",
    "megatron+sequence": "Megatron with sequence parallelism",
}
"""Schemes that the app offers, with their names on the page."""
NETWORK, NODE = "topology.bandwidth_bytes_per_second", "topology.nvlink_bandwidth_bytes_per_second"
"""Paths of the machine's numbers that the sliders of bandwidth multiply."""
AXES = {"tensor": "x", "depth": "z", "pipeline": "pipeline", "context": "context"}
AXES |= {"expert": "expert", "expert_tensor": "expert_tensor"}
"""Axis of the grid of each knob of the layout; the data axis follows from the number of GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The positions of all knobs.

    Parameters
    ----------
    model, machine : names, as `quadrille models` and `quadrille machines` list them
    gpus : number of GPUs
    tensor, depth : lengths of the grid along x and z
    pipeline, context, expert, expert_tensor : lengths of the grid along these axes
    batch : sequences of a step
    micro_batch : sequences of a microbatch
    scheme : a key of `SCHEMES`
    products : precision of the products of linear layers
    overlap : kinds of communication beside products
    network, node : factors on the bandwidth of the network and of the links in a node
    more : further flags of `simulate`, as typed
    """

    model: str = "llama3-70b"
    machine: str = "h100-superpod"
    gpus: int = 512
    tensor: int = 8
    depth: int = 1
    pipeline: int = 4
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    batch: int = 512
    micro_batch: int = 1
    interleave: int = 1
    pipeline_schedule: str = "1f1b"
    scheme: str = "megatron+sequence"
    zero: int = 1
    recompute: str = "none"
    products: str = "dtype"
    overlap: tuple[str, ...] = ()
    network: float = 1.0
    node: float = 1.0
    more: str = ""

    def words(self) -> tuple[str, ...]:
        """The words of the command line after `quadrille simulate`; knobs at a flag's default are left out.

        >>> " ".join(Settings(model="tiny", machine="h100-node", gpus=8, pipeline=1, zero=0, network=0.5).words()[:9])
        '--gpt tiny --machine h100-node --gpus 8 --grid data=*,x=8 --batch'

        Raises
        ------
        InputError : quotes in `more` that do not close
        """
        lengths = {axis: getattr(self, knob) for knob, axis in AXES.items()}
        grid = ",".join(["data=*", *(f"{axis}={length}" for axis, length in lengths.items() if length != 1)])
        scheme, _, sequence = self.scheme.partition("+")
        words = ["--gpt", self.model, "--machine", self.machine, "--gpus", str(self.gpus), "--grid", grid]
        words += ["--batch", str(self.batch), "--micro-batch", str(self.micro_batch)]
        usual: dict[str, tuple[Any, Any]] = {
            "--scheme": (scheme, "4d"),
            "--zero": (self.zero, 0),
            "--interleave": (self.interleave, 1),
            "--pipeline-schedule": (self.pipeline_schedule, "1f1b"),
            "--recompute": (self.recompute, "none"),
            "--products": (self.products, "dtype"),
            "--overlap": (",".join(self.overlap), ""),
        }
        words += [word for flag, (value, default) in usual.items() if value != default for word in (flag, str(value))]
        words += ["--sequence-parallel"] if sequence else []
        for path, factor in ((NETWORK, self.network), (NODE, self.node)):
            words += ["--set", f"{path}=x{factor:g}"] if factor != 1 else []
        try:
            return (*words, *shlex.split(self.more))
        except ValueError as error:
            raise InputError(f"further flags {self.more!r:.40}: {error}") from None

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> "Settings":
        """The positions that an address gives, the others as they are at first.

        >>> Settings.from_texts({"gpus": "64", "overlap": "oar,oag"}).overlap
        ('oar', 'oag')

        Raises
        ------
        InputError : no such knob, or no number where a knob has one
        """
        values: dict[str, Any] = {}
        for name, text in texts.items():
            if name not in KNOBS:
                raise InputError(f"{name}: is no knob{nearest_hint(name, KNOBS, 1)}; the knobs are {', '.join(KNOBS)}")
            usual = getattr(cls(), name)
            try:
                values[name] = tuple(filter(None, text.split(","))) if isinstance(usual, tuple) else type(usual)(text)
            except ValueError:
                raise InputError(f"{name} {text!r:.40}: a number is accepted") from None
        return cls(**values)

    def texts(self) -> dict[str, str]:
        """The positions that differ from the first ones, as an address gives them.

        >>> Settings(gpus=64, overlap=("oar", "oag")).texts()
        {'gpus': '64', 'overlap': 'oar,oag'}
        """
        values = {name: getattr(self, name) for name in KNOBS if getattr(self, name) != getattr(Settings(), name)}
        return {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in values.items()}

    @property
    def lacking(self) -> frozenset[str]:
        """The knobs that mean nothing on this machine or for this model.

        >>> sorted(Settings(model="llama3-8b", machine="h100-node").lacking)
        ['expert', 'expert_tensor', 'network']
        """
        lacking = set[str]()
        if self.model in SHAPES and SHAPES[self.model].experts is None:
            lacking |= {"expert", "expert_tensor"}
        if self.machine in MACHINES:
            named = MACHINES[self.machine]
            lacking |= {"network"} if named.gpus <= named.gpus_per_node else set()
            lacking |= {"node"} if NODE.rpartition(".")[2] not in named.numbers else set()
        return frozenset(lacking)

    def without_lacking(self) -> "Settings":
        """The settings with every knob that means nothing at its first position."""
        return replace(self, **{name: getattr(Settings(), name) for name in self.lacking})

    def command(self) -> tuple[str, ...]:
        """The words of the whole command line."""
        return ("quadrille", "simulate", *self.words())

    def experiment_file(self) -> str:
        """The experiment file of the command line.

        Raises
        ------
        InputError : words in `more` that are no flags
        """
        file = experiment_file(shlex.join(self.command()))
        if file is None:
            raise InputError(f"further flags {self.more!r:.40}: an experiment file has flags with their values only")
        return file[1]


KNOBS = tuple(field.name for field in fields(Settings))
SUBJECTS = {"gpt": "model", "microbatch": "micro_batch", "schedule": "pipeline_schedule"}
"""Words at the beginning of an error line that mean a knob of another name."""


def knob_at_fault(line: str) -> str:
    """The knob that an error line is about, by the flag or axis at its beginning; `more` if it names none.

    >>> knob_at_fault("--micro-batch 3: accepted are divisors of 8"), knob_at_fault("grid x=3: accepted are 1, 2")
    ('micro_batch', 'tensor')
    """
    subject, _, value = line.removeprefix("quadrille: ").lstrip("-").partition(" ")
    if subject == "grid":
        axis = value.partition("=")[0]
        return next((knob for knob, its_axis in AXES.items() if its_axis == axis), "gpus")
    if subject == "set":
        return next((knob for knob, path in (("network", NETWORK), ("node", NODE)) if value.startswith(path)), "more")
    name = SUBJECTS.get(subject, subject.replace("-", "_"))
    return name if name in KNOBS else "more"
