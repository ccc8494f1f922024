"""Jobs of PyTorch's own parallelism, whose model comes beside: DeepSpeed, torchtitan, and a bare `config.json`.

A file has the batch, the precision, the shards and the parallel groups; a `Layout` holds what is read of it, and
`layout_experiment` makes the experiment.
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import OverlapName, Products
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.gpt import check_gpt, gpt_from_shape
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.training.recompute import Recompute
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The batch, the precision and the parallel groups of a job.

    Parameters
    ----------
    gpus : number of GPUs
    batch : sequences of a batch over all GPUs; 0 for one microbatch on each data rank
    micro_batch : sequences of a microbatch; 0 for the share of a data rank in one piece
    sequence : tokens of a sequence; 0 for those of the model
    tensor, pipeline, context, expert : lengths of the parallel groups
    zero : ZeRO stage
    """

    gpus: int
    batch: int = 0
    micro_batch: int = 0
    sequence: int = 0
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    interleave: int = 1
    zero: int = 0
    dtype: DType = "bfloat16"
    gradient_bytes: int = 4
    clip: float = 0.0
    recompute: Recompute = "none"
    offload: Offload | None = None
    products: Products = "dtype"
    overlaps: frozenset[OverlapName] = frozenset()

    @property
    def data(self) -> int:
        """Ranks along data.

        Raises
        ------
        InputError : GPUs that the groups do not divide
        """
        ranks = self.tensor * self.pipeline * self.context
        if self.gpus % ranks:
            raise InputError(f"{self.gpus} GPUs: a multiple of tensor x pipeline x context = {ranks} is accepted")
        return self.gpus // ranks


def layout_experiment(layout: Layout, shape: ModelShape) -> TrainingExperiment:
    """The experiment of a model on a layout.

    Raises
    ------
    InputError : sizes that do not divide, or options that do not go together
    """
    data = layout.data
    if layout.sequence:
        shape = replace(shape, sequence=layout.sequence)
    micro = layout.micro_batch or max(1, layout.batch // data)
    batch = layout.batch or micro * data
    if batch % (micro * data):
        raise InputError(f"batch {batch}: a multiple of micro batch x data ranks = {micro} x {data} is accepted")
    problem = gpt_from_shape(
        shape,
        batch,
        dtype=layout.dtype,
        micro_batch=micro,
        adam=Adam(rate=default_rate(shape.hidden), clip=layout.clip),
        zero=layout.zero if data * layout.context > 1 else 0,
        gradient_bytes=4 if layout.dtype == "float32" else layout.gradient_bytes,
        recompute=layout.recompute,
        offload=layout.offload,
        interleave=layout.interleave,
        products=layout.products,
    )
    grid = Grid(pipeline=layout.pipeline, data=data, x=layout.tensor, context=layout.context, expert=layout.expert)
    scheme = find_scheme("megatron", sequence_parallel=layout.tensor > 1)
    check_gpt(problem, grid, scheme)
    return TrainingExperiment(problem, grid, scheme, ExecutionOptions(overlaps=layout.overlaps), shape=shape)
