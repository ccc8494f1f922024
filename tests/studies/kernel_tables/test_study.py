"""The study of kernel tables writes what it prints."""

import csv

from quadrille.studies.kernel_tables import study as module
from quadrille.topologies.nodes.kernel_tables import kernel_table


def test_errors_of_every_table_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "compared_rows", lambda path: [[path, "product", "1", "1.0", "1.1", "1.2"]])
    module.kernel_tables("kernels.csv", results=tmp_path)
    with (tmp_path / "table_errors.csv").open() as file:
        written = list(csv.DictReader(file))
    attention = next(row for row in written if (row["GPU"], row["kernels"]) == ("H100 SXM", "attention"))
    assert int(attention["measurements"]) == kernel_table("h100-sxm").attention.rows
    assert (tmp_path / "sources.csv").read_text().splitlines()[1] == "kernels.csv,product,1,1.0,1.1,1.2"
    assert "kernels.csv" in capsys.readouterr().out
