"""The commands about files of other programs: import job."""

from typing import Annotated

from quadrille.cli.app import import_group
from quadrille.cli.command_declarations import argument, flag, switch


@import_group.command("job", text="Make an experiment file from the arguments of a Megatron-LM job.")
def import_job(
    file: Annotated[str, argument("FILE", "A launch script, a log, JSON or YAML with arguments; - for stdin.")],
    out: Annotated[str, flag("--out", "FILE.toml", "Where the experiment goes; - for stdout.")] = "-",
    gpus: Annotated[str, flag("--gpus", "N", "How many; by default those that the file names.")] = "",
    approximate: Annotated[bool, switch("--approximate", "Go on without what an experiment cannot express.")] = False,
) -> None:
    """Make an experiment file from a job."""
    from quadrille.algorithms.errors import InputError
    from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_text
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.experiments.import_.job_experiment import differences, experiment_text, memory_remark, read_job
    from quadrille.experiments.output.destinations import check_paths_differ
    from quadrille.runtime.host.console import remark

    if out != STDOUT:
        check_paths_differ({"--out": out}, {"FILE": file})
        check_writable(out)
    job = read_job(file, whole_number(gpus, "--gpus") if gpus else None)
    lines = differences(job)
    if lines and not approximate:
        raise InputError(f"{file}: {'; '.join(lines)}: --approximate goes on all the same")
    text = experiment_text(job)
    if job.ignored:
        remark(f"{file}: ignored, for they change neither sizes nor layout: {', '.join(map(_flag, job.ignored))}")
    if lines:
        remark(f"{file}: the experiment differs from the job: {'; '.join(lines)}")
    if words := memory_remark(job):
        remark(f"{file}: {words}")
    write_text(out, text)


def _flag(name: str) -> str:
    return f"--{name}"
