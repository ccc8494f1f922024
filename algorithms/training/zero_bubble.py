"""Split backward passes of zero-bubble pipelines: the gradients of activations, then those of weights.

    B    ops that lead to the gradient of a stage's input, and recomputation
    W    the other ops: gradients of weights and biases, and their addition to the sum of the step

W passes run later, when the stage would wait for a message.  So W reads tensors that ops of F and B have overwritten by
then, unless there are copies:

    written by F                            a copy for each microbatch whose W pass has not run
    written by B, once for a layer          a copy for each layer and each microbatch whose W pass has not run
    written by B, and by B or F after that  as before, and an op of B that copies the tensor before it changes

Layers of two kinds have a choice between two bodies.  Each body is split, and copies are for the layers of its kind.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.rewriting import filter_ops, rename_tensors
from quadrille.algorithms.schedule.ops import Op, Pointwise, Send, reads, writes
from quadrille.algorithms.schedule.program import Choice, Program, Repeat
from quadrille.algorithms.schedule.program import ops as ops_of
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.pipeline import LAYER_LOOPS, Stages
from quadrille.algorithms.training.recompute import Fetch
from quadrille.algorithms.training.transformer import LAYER


@dataclass(frozen=True, slots=True)
class SplitBackward:
    """A backward pass in two parts, and the tensors whose copies the second part needs.

    Parameters
    ----------
    inputs, weights : programs of the B pass and of the W pass
    stored : tensors of the forward pass that W reads
    kept : tensors of B that W reads
    saved : name of the tensor with a copy, and the tensor of B that is copied into it
    """

    inputs: Program
    weights: Program
    stored: frozenset[str]
    kept: frozenset[str]
    saved: tuple[tuple[str, str], ...]


def split_backward(body: Program, gradients: Collection[str], forward: Program) -> SplitBackward:
    """Returns the two parts of a backward pass.

    Parameters
    ----------
    body : backward pass of one layer, or of all layers of a stage
    gradients : gradients that B computes, those of activations among them
    forward : ops outside the body that run between a B pass and its W pass

    Raises
    ------
    InputError : ops of B and W alternate in a loop over panels
    """
    singly = _singly(body)
    splitter = _Splitter(singly, gradients, forward)
    for entry in singly:
        splitter.add(entry)
    return splitter.parts()


def _singly(body: Program) -> Program:
    """The body with a choice for each op of the choices between kinds of layers."""
    return tuple(
        replace(entry, body=(inner,)) if _is_of_kind(entry) else inner
        for entry in body
        for inner in (entry.body if isinstance(entry, Repeat) and _is_of_kind(entry) else (entry,))
    )


def _is_of_kind(entry: Op | Repeat) -> TypeGuard[Choice]:
    """Whether only layers of one kind run an entry of the body of all layers."""
    return isinstance(entry, Choice) and entry.loop in LAYER_LOOPS


def _joined(program: Sequence[Op | Repeat]) -> Program:
    """The program with choices that follow each other and are alike as one."""
    joined = list[Op | Repeat]()
    for entry in program:
        before = joined[-1] if joined else None
        if _is_of_kind(entry) and before is not None and _is_of_kind(before) and before.loop == entry.loop:
            joined[-1] = replace(before, body=(*before.body, *entry.body))
        else:
            joined.append(entry)
    return tuple(joined)


@dataclass(slots=True)
class _Splitter:
    """Splits the entries of a body one after the other; counts how often B has written each tensor."""

    body: Program
    gradients: Collection[str]
    forward: Program
    from_gradients: set[str] = field(init=False)
    needed: set[str] = field(init=False)
    last_version: Counter[str] = field(init=False)
    version: Counter[str] = field(default_factory=Counter)
    carried: set[str] = field(init=False)
    written_by_w: set[str] = field(default_factory=set)
    inputs: list[Op | Repeat] = field(default_factory=list)
    weights: list[Op | Repeat] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    saved: dict[str, str] = field(default_factory=dict)
    within: Choice | None = None

    def __post_init__(self) -> None:
        self.from_gradients = _closure(
            self.gradients, lambda names: (writes(op) for op in ops_of(self.body) if names & {*reads(op)})
        )
        self.needed = _closure(
            self.gradients, lambda names: (reads(op) for op in ops_of(self.body) if self._stays(op, names))
        )
        parts = [self._of_b(entry) for entry in self.body]
        self.last_version = Counter(name for part in parts for name in _written(part))
        self.carried = _read_first(op for part in parts for op in ops_of(part)) | _written(self.forward)

    def _stays(self, op: Op, needed: set[str]) -> bool:
        """Whether an op is in B, which writes the needed tensors.

        An op that uses no gradient is recomputation.  But what a gradient of weights fetches from other ranks is in W.
        """
        if isinstance(op, Send) or needed & {*writes(op)}:
            return True
        recomputes = bool(reads(op)) and not self.from_gradients & {*reads(op)}
        return recomputes and not isinstance(op, Fetch)

    def _of_b(self, entry: Op | Repeat) -> Program:
        return filter_ops((entry,), lambda op: self._stays(op, self.needed))

    def add(self, entry: Op | Repeat) -> None:
        """Adds an entry of the body to B, to W, or its ops to both."""
        self.within = entry if _is_of_kind(entry) else None
        of_b, of_w = self._of_b(entry), filter_ops((entry,), lambda op: not self._stays(op, self.needed))
        names = {name: self._name_for_w(name, _written(of_b)) for name in sorted(self._read_by_w(of_w))}
        self.inputs += of_b
        self.version.update(_written(of_b))
        self.weights += rename_tensors(of_w, names) if of_w else ()
        self.written_by_w |= _written(of_w)

    def _read_by_w(self, of_w: Program) -> set[str]:
        """Tensors that ops of W read from before the W pass."""
        return _read_first(ops_of(of_w)) - self.written_by_w

    def _name_for_w(self, name: str, written_here: set[str]) -> str:
        """The tensor that W reads in place of a tensor of the whole backward pass."""
        if name in written_here:
            raise InputError(
                f"pipeline-schedule zb-h1 or zb-v: a loop over panels writes {name} and computes gradients of weights "
                "from it; 1f1b is accepted"
            )
        if not self.last_version[name]:
            self.stored.add(name)
            return name
        if self.version[name] == self.last_version[name] and name not in self.carried:
            self.kept.add(name)
            return name
        saved = f"{name} saved {self.version[name]}" + (f" in {self.within.loop}" if self.within else "")
        if saved not in self.saved:
            self.saved[saved] = name
            save = Pointwise(name=f"save {saved}", function="copy", into=saved, sources=(name,))
            self.inputs.append(replace(self.within, body=(save,)) if self.within else save)
        return saved

    def parts(self) -> SplitBackward:
        """Both parts, after all entries."""
        stored, kept = frozenset(self.stored), frozenset(self.kept)
        inputs, weights = _joined(self.inputs), _joined(self.weights)
        return SplitBackward(inputs, weights, stored, kept, tuple(self.saved.items()))


def _closure(names: Collection[str], step: Callable[[set[str]], Iterable[tuple[str, ...]]]) -> set[str]:
    """The smallest set that has these names and all names of a step from the set."""
    closed, more = set[str](), set(names)
    while more:
        closed |= more
        more = {name for following in step(closed) for name in following} - closed
    return closed


def _written(program: Program) -> set[str]:
    return {name for op in ops_of(program) for name in writes(op)}


def _read_first(each: Iterable[Op]) -> set[str]:
    """Tensors that some ops read before any of the ops writes them."""
    first, written = set[str](), set[str]()
    for op in each:
        first |= {*reads(op)} - written
        written |= {*writes(op)}
    return first


def with_split_copies(
    tensors: Sequence[Tensor], stages: Stages, splits: Sequence[SplitBackward], *, layered: bool
) -> list[Tensor]:
    """Returns the tensors with the copies that W passes need, and the tensors that B saves.

    Parameters
    ----------
    tensors : tensors of a step whose backward passes are whole
    stages : stages of the pipeline
    splits : backward passes of the stages
    layered : whether a loop over layers runs each backward pass, so that copies are for each layer
    """
    stored = frozenset[str]().union(*(split.stored for split in splits))
    kept = frozenset[str]().union(*(split.kept for split in splits))
    loops = {name: loop for split in splits for name, loop in _loops_of(split).items()}

    def pending(name: str) -> Copies:
        loop = loops.get(name, LAYER)
        length = stages.most_length() if loop == LAYER else stages.of_kind(loop, longest=True)[0]
        return (stages.pending_copies, *(((loop, length),) if layered else ()))

    (until_backward,) = stages.in_flight_copies

    def copied(tensor: Tensor) -> Tensor:
        if tensor.name in kept:
            return replace(tensor, copies=pending(tensor.name))
        if tensor.name not in stored:
            return tensor
        return replace(
            tensor, copies=tuple(stages.stored_copies if loop == until_backward else loop for loop in tensor.copies)
        )

    by_name = {tensor.name: tensor for tensor in tensors}
    saved = dict(pair for split in splits for pair in split.saved)
    return [
        *(copied(tensor) for tensor in tensors),
        *(
            replace(by_name[source], name=name, copies=pending(name), first_indices=())
            for name, source in saved.items()
        ),
    ]


def _loops_of(split: SplitBackward) -> dict[str, str]:
    """Loops over the layers of one kind whose layers alone use a tensor, by the tensor's name."""
    loops = dict[str, set[str]]()
    for entry in (*split.inputs, *split.weights):
        for op in ops_of((entry,)):
            for name in (*reads(op), *writes(op)):
                loops.setdefault(name, set()).add(entry.loop if _is_of_kind(entry) else LAYER)
    return {name: loop for name, (loop, *others) in loops.items() if not others}
