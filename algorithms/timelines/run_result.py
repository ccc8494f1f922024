"""`RunResult`: the base of predictions and executions, with their rows, their line, their HTML and their figure."""

from typing import TYPE_CHECKING

from quadrille.algorithms.tabular import Tabular

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quadrille.algorithms.timelines.run_summary import Run


class RunResult(Tabular):
    """Base of predictions and executions; a subclass is a `Run`."""

    __slots__ = ()

    def rows(self: "Run") -> list[dict[str, object]]:
        """A row for each op; seconds are means over ranks."""
        columns = ("name", "kind", "axis", "count", "seconds", "waiting_seconds", "exposed_seconds")
        return [{column: getattr(op, column) for column in columns} for op in self.op_times().values()]

    @property
    def heading(self: "Run") -> str:
        """The number of ranks, the time, its interval, and the activity that takes most of the time, in one line."""
        from quadrille.algorithms.timelines.run_summary import headline

        return headline(self)

    def plot(self: "Run") -> "Figure":
        """The timeline as a figure of matplotlib; of ranks with equal times, the first is drawn.

        Raises
        ------
        InputError : the extra `plot` is not installed
        """
        from quadrille.algorithms.optional_packages import check_installed

        check_installed("matplotlib")
        from quadrille.algorithms.timelines.run_summary import headline
        from quadrille.algorithms.timelines.timeline_figure import QUESTION, timeline_figure, with_distinct_ranks

        place = f", on {self.machine}" if self.machine else ""
        setting = f"{self.timeline.name}{place}: {headline(self)}"
        return timeline_figure(with_distinct_ranks(self.timeline), question=QUESTION, setting=setting)

    def _repr_html_(self: "Run") -> str | None:
        """HTML of the summary, the longest ops and a small timeline, which IPython calls for."""
        from quadrille.algorithms.timelines.run_summary import run_html

        return run_html(self)
