"""How far off are the tables of measured kernels, on measurements left out and on kernels of training?

    quadrille study kernel-tables --rows simumax_kernels.csv

The errors on measurements that were left out are stored in the tables (`make_tables.py`, `make_experts.py`).  Kernels
of training are those of `compare_sources.py`.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.tabular import comma_separated
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.studies.kernel_tables.compare_sources import COLUMNS, compared_rows
from quadrille.topologies.nodes.kernel_tables import kernel_table, kernel_table_names

RESULTS = Path(__file__).resolve().parent / "results"
OF_TABLES = ("GPU", "kernels", "measurements", "median error", "90th percentile")


def kernel_tables(file: str, results: Path = RESULTS) -> None:
    """Print the errors of the tables and the comparison with kernels of training, and write both.

    Parameters
    ----------
    file : kernels of training, as SimuMax measured them

    Raises
    ------
    InputError : no file
    """
    compared, errors = compared_rows(file), list(table_errors())
    print_tables(
        table("errors on measurements that the tables were made without", OF_TABLES, errors, names=2),
        table("measured seconds / seconds of the table", COLUMNS, compared, names=2),
    )
    results.mkdir(exist_ok=True)
    _write(results / "table_errors.csv", OF_TABLES, errors)
    _write(results / "sources.csv", COLUMNS, compared)


def table_errors() -> Iterator[list[str]]:
    """Number of measurements, and errors on a random quarter that was left out, by GPU and kind of kernels."""
    for name in kernel_table_names():
        kernels = kernel_table(name)
        parts = {f"products, {precision}": of for precision, of in kernels.products.items()}
        parts["attention"] = kernels.attention
        if kernels.experts is not None:
            parts["experts"] = kernels.experts
        for kind, of in parts.items():
            yield [kernels.gpu, kind, str(of.rows), percent(of.median_error), percent(of.most_error)]


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    schema_files.write_text(path, comma_separated(columns, rows))


def main() -> None:
    """The study of the data that the command line names; `make studies` names none, and it is left out there."""
    if sys.argv[1:]:
        kernel_tables(sys.argv[1])
    else:
        remark("kernel_tables is left out: it needs FILE.csv, kernels of training")


if __name__ == "__main__":
    run_as_program(main)
