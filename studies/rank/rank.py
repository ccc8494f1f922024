"""`quadrille rank`: every grid of a number of GPUs by the analytical model, the best of them simulated.

Started by `quadrille launch`, the ranks share the simulations; the first one
speaks, and says the same whatever their number.
"""

import sys
from collections.abc import Sequence

from algorithms.formats import files
from algorithms.formats.provenance import provenance
from studies.experiments.destinations import Destinations
from studies.experiments.machine_flags import MachineFlags
from studies.experiments.machines import is_file_name
from studies.rank.again import simulate_command
from studies.rank.analytical import ranked
from studies.rank.question import Question, RankFlags, parse_question
from studies.rank.report import SCHEMA, RankAnswer, SimulatedGrid, answer_of, lengths_of, print_answer
from studies.rank.schemes import rank_schemes, write_schemes
from studies.rank.schemes_report import SchemesAnswer
from studies.rank.sharing import assemble
from studies.rank.step import simulated_step
from studies.training.step import Step


def rank(
    flags: RankFlags, on: MachineFlags, *, json: str = "", command: Sequence[str] = ()
) -> RankAnswer | SchemesAnswer:
    """Ranks the grids, or the configurations of schemes, and on the first rank writes or prints what came out.

    Parameters
    ----------
    json : a file, or `-` for stdout
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : a flag, a model, a machine or a file that cannot be; no grid that fits
    """
    Destinations(json=json).check({"--machine": on.machine} if is_file_name(on.machine) else {})
    question = parse_question(flags, on)
    crew = assemble()
    if flags.of_schemes:
        configured = rank_schemes(flags, question, crew)
        if crew.speaks:
            _remark(question)
            write_schemes(configured, flags, on, json=json, command=command)
        return configured
    found = ranked(question, crew)
    grids = [found.candidates.grid(place) for place in range(min(question.top, len(found)))]

    def simulated(place: int) -> Step:
        return simulated_step(question, grids[place])

    answer = answer_of(question, found, crew.share(simulated, range(len(grids)), "grids simulated"))
    if crew.speaks:
        _remark(question)
        _write(answer, json, command, _again(flags.in_full, on, answer.simulated[0]))
    return answer


def _again(flags: RankFlags, on: MachineFlags, best: SimulatedGrid) -> str:
    """The command that simulates a grid."""
    even = best.shards == "even"
    return simulate_command(flags, on, lengths_of(best.grid), ",".join(best.order), even_shards=even)


def _write(answer: RankAnswer, json: str, command: Sequence[str], again: str) -> None:
    """The file has a provenance; stdout has none, and is the same in every run."""
    if json == files.STDOUT:
        files.write_json(json, answer, SCHEMA)
        return
    if json:
        import msgspec

        files.write_json(json, msgspec.structs.replace(answer, provenance=provenance(command)), SCHEMA)
    print_answer(answer, again)


def _remark(question: Question) -> None:
    """Says what a user should know beside the answer."""
    for remark in _remarks(question):
        print(f"quadrille: {remark}", file=sys.stderr)


def _remarks(question: Question) -> list[str]:
    machine, dtype = question.machine, question.training.dtype
    differences, found = question.shape.differences, []
    if differences:
        found.append(f"{question.shape.name} is simulated otherwise: {'; '.join(differences)}")
    if dtype not in machine.device.peak_flops_per_second:
        known = ", ".join(machine.device.peak_flops_per_second)
        found.append(f"{machine.name} gives no speed for {dtype}, only for {known}")
    return found
