"""`with_steps`: a message graph whose collectives are sends and receives, by the algorithms of `lowering.py`."""

from collections.abc import Iterator, Sequence

from quadrille.algorithms.analysis.traffic import elements_of
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.lowering import lower
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph, check_count, without_repeats
from quadrille.algorithms.schedule.parts import boundaries

FIRST_TAG = 1 << 32
"""Tags of the messages of collectives, above those of other messages."""
Tags = dict[tuple[tuple[int, ...], int], int]


def with_steps(graph: MessageGraph, choices: Choices, source: str) -> MessageGraph:
    """The graph with the steps of each collective; the k-th collective of a group is the k-th at each of its members.

    Parameters
    ----------
    choices : algorithms of the collectives
    source : name of the graph in errors

    Raises
    ------
    InputError : too many steps, or a rank in a collective of a group without it
    """
    if not graph.count("collective"):
        return graph
    if choices.implementation != "own":
        raise InputError(f"collectives '{choices}': a graph needs steps; accepted are own and own:NAME")
    tags: Tags = {}
    ranks, count = [], 0
    for rank, tasks in enumerate(graph.ranks):
        ranks.append(list(_expanded(tasks, rank, choices, tags, source)))
        count += len(ranks[-1])
        check_count(count, source)
    return MessageGraph(tuple(ranks))


def _expanded(tasks: Sequence[GraphTask], rank: int, choices: Choices, tags: Tags, source: str) -> Iterator[GraphTask]:
    """Yields the tasks of a rank; a task that waits for a collective waits for its last step."""
    counts: dict[tuple[int, ...], int] = {}
    steps: list[list[GraphTask]] = []
    for task in tasks:
        if task.kind != "collective":
            steps.append([task])
            continue
        if rank not in task.group:
            raise InputError(f"{source}, rank {rank}: is not in the group of its collective {task.name!r:.60}")
        key = task.group, counts.get(task.group, 0)
        counts[task.group] = key[1] + 1
        steps.append(list(_steps(task, rank, choices, tags.setdefault(key, FIRST_TAG + len(tags)))))
    firsts, total = [], 0
    for listed in steps:
        firsts.append(total)
        total += len(listed)
    ends = [
        [first + number for number in _last(listed)] if listed else []
        for first, listed in zip(firsts, steps, strict=True)
    ]
    for number, listed in enumerate(steps):
        if not listed:  # a collective of one rank takes no time, so what waits for it waits for its needs
            assert len(tasks[number].group) == 1
            ends[number] = [end for need in tasks[number].needs for end in ends[need]]
    for first, listed, task in zip(firsts, steps, tasks, strict=True):
        outer = without_repeats(end for need in task.needs for end in ends[need])
        starts = without_repeats(firsts[start] for start in task.starts)
        for step in listed:
            if step is task:
                yield task._replace(needs=outer, starts=starts)
            else:
                inner = tuple(first + need for need in step.needs)
                yield step._replace(needs=inner or outer, starts=() if inner else starts)


def _last(listed: Sequence[GraphTask]) -> list[int]:
    """The tasks of a collective for which no other task of it waits."""
    awaited = {need for step in listed if len(listed) > 1 for need in step.needs}
    return [number for number in range(len(listed)) if number not in awaited]


def _steps(task: GraphTask, rank: int, choices: Choices, tag: int) -> Iterator[GraphTask]:
    """Yields the sends and receives of a rank in a collective; their needs count from the first of them."""
    assert task.collective is not None
    members, size = len(task.group), round(task.amount)
    if members == 1:
        return
    algorithm = choices.algorithm(task.collective)
    lowered = lower(
        task.collective, algorithm, members, size_bytes=size, elements=size, chunk_bytes=choices.chunk_bytes
    )
    edges = tuple(boundaries(size, lowered.pieces))
    number = 0
    needs: tuple[int, ...] = ()
    posted: list[int] = []
    for step in lowered.program(task.group.index(rank)):
        sent, received = elements_of(step.send, edges), elements_of(step.receive, edges)
        for peer, amount, kind in ((step.send_to, sent, "send"), (step.receive_from, received, "receive")):
            if peer is None:
                continue
            yield GraphTask(
                "send" if kind == "send" else "receive",
                float(amount),
                needs,
                peer=task.group[peer],
                tag=tag,
                stream=task.stream,
                name=task.name,
            )
            posted.append(number)
            number += 1
        if not lowered.at_once and posted:
            needs, posted = tuple(posted), []
