"""The exit status of a launch, and the line that explains a failure if the ranks left none."""

import re
from collections.abc import Sequence

from quadrille.algorithms.errors import InputError
from quadrille.runtime.host.console import INTERRUPTED
from quadrille.runtime.host.progress_reports import RankProgress
from quadrille.runtime.launching.hang_detection import NetworkDiagnosis, describe_position, describe_ranks
from quadrille.runtime.launching.launcher_output import Failure, LauncherOutput, signal_name
from quadrille.runtime.launching.mpirun import Mpi
from quadrille.runtime.launching.supervise import write_error

LAST_SIGNAL = 64


def exit_status(
    status: int | None,
    output: LauncherOutput,
    launcher: Mpi,
    options: Sequence[str],
    ranks: Sequence[RankProgress] = (),
    diagnose_network: NetworkDiagnosis = tuple,
) -> int:
    """The exit status of the launch. It prints a line if no rank explained the failure, unless the user interrupted it.

    Parameters
    ----------
    ranks : last reported progress of each rank
    diagnose_network : returns visible network faults; called if no rank ran

    Raises
    ------
    InputError : the launcher refused its options, and no rank ran
    """
    if status is None:
        return INTERRUPTED
    if output.hang:
        write_error(f"quadrille: {output.hang}; all ranks were ended\n")
        return 1
    if status == 0:
        return 0
    if status < 0:
        write_error(
            f"quadrille: {launcher} was killed by signal {-status} ({signal_name(-status)}); all ranks were ended\n"
        )
        return 1
    failure = output.culprit() or failure_of_status(status, output, ranks)
    if failure is None and (faults := diagnose_network()):
        write_error(f"quadrille: {launcher} did not start the ranks; {'; '.join(faults)}; all ranks were ended\n")
        return 1
    if failure is None:
        raise InputError(f"{launcher} did not start the ranks{options_named(options)}: {reason_in(status, output)}")
    if not explained(failure, output):
        write_error(f"quadrille: {failure.line(place_of(failure, ranks))}\n")
    return 2 if failure.status == 2 else 1


def failure_of_status(status: int, output: LauncherOutput, ranks: Sequence[RankProgress] = ()) -> Failure | None:
    """The failure behind an exit status without a remark; None if the launcher itself refused.

    Parameters
    ----------
    ranks : progress reports; if there are any, the launcher started the ranks
    """
    if ranks and output.aborting:
        return Failure()
    if not ranks and (status > 128 + LAST_SIGNAL or (output.remarks and not output.passed)):
        return None
    return Failure(signal=status - 128) if 128 < status <= 128 + LAST_SIGNAL else Failure(status=status)


def place_of(failure: Failure, ranks: Sequence[RankProgress]) -> str:
    """The last position of the failed rank, or of all ranks if it is unknown; empty without reports of their programs.

    >>> ranks = [RankProgress(rank, 1, 2, True, "'gather B'") for rank in range(2)]
    >>> place_of(Failure(rank=1), ranks), place_of(Failure(), ranks), place_of(Failure(), [])
    ("in 'gather B'", "(ranks 0, 1 in 'gather B')", '')
    """
    ranks = [progress for progress in ranks if progress.count]
    if failure.rank is None:
        return f"({'; '.join(describe_ranks(ranks))})" if ranks else ""
    return next((describe_position(progress) for progress in ranks if progress.rank == failure.rank), "")


def explained(failure: Failure, output: LauncherOutput) -> bool:
    """Whether the ranks' own lines explain the failure.

    For a refused input any line does; otherwise a Quadrille line that names the rank.
    """
    if failure.signal is not None:
        return False
    if failure.status == 2:
        return bool(output.passed)
    return any(line.startswith(f"quadrille: rank {failure.rank} of ") for line in output.passed)


def options_named(options: Sequence[str]) -> str:
    """The launcher options as part of a message; empty if there are none."""
    return f" with options {' '.join(options)!r}" if options else ""


def reason_in(status: int, output: LauncherOutput) -> str:
    r"""The launcher's remarks as one line: the first paragraph, and the option that it names.

    >>> output = LauncherOutput()
    >>> output.keep_remark("-" * 60 + "\nA daemon failed to report back. Remote host: far\n" + "-" * 60)
    True
    >>> reason_in(255, output)
    'no process of the launcher began on host far'
    """
    for remark in output.remarks:
        if unreached := re.search(r"daemon failed to report back.*Remote host:\s*(\S+)", remark, re.DOTALL):
            return f"no process of the launcher began on host {unreached[1]}"
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", "\n\n".join(output.remarks))]
    return " ".join(paragraphs[:2]) or f"it ended with exit status {status}"
