"""Files of results: a study that ends early leaves those that were there."""

from tests.support.quadrille import ROOT


def test_no_study_empties_a_file_before_it_has_the_rows():
    """Whole texts go through `schema_files`, which renames a file that is complete."""
    for path in (ROOT / "studies").rglob("*.py"):
        assert '.open("w"' not in path.read_text(), (
            f"{path.relative_to(ROOT)} empties a file; use schema_files.write_text"
        )
