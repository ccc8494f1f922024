"""The part of YAML that configurations and topology files need, compared with a full reader of YAML."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.yaml_subset import parse_yaml
from tests.support.fabric_files import SAMPLES, SLURM_YAML

yaml = pytest.importorskip("yaml")
TEXTS = [
    SLURM_YAML,
    (SAMPLES / "topograph_model_medium.yaml").read_text(),
    (SAMPLES / "astra_hgx_h100_16gpu.yml").read_text(),
    "a: 'x: # y'\nb: \"z\"  # end\nc:\n- d: 1\n  e: [p, 'q, r', n[1-3]]\n-   f: 2\ng:\n",
    "- - a\n  - b\n- c\n-\n  d: e\n",
    "a: []\nb: {}\nc: {d: 1, e: [f, {g: h, i: }]}\nj:\n- {k: l}\n- [[m], 'n, o']\np: [${q}, r:s]\n",
    "a: |-\n  b: # c\n\n    d\n\ne: >-\n  f\n  g\nh:\n- |-\n  i\n- j\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_value_that_a_full_reader_gives(text):
    quoted = text.replace("n[1-3]]", "'n[1-3]']").replace("${q}", "'${q}'")
    expected = yaml.load(quoted, Loader=yaml.BaseLoader)
    assert parse_yaml(text, "t.yaml") == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: &x 1\nb: *x\n", 1),
        ("a: 1\n  b: 2\n", 2),
        ("a: 1\na: 2\n", 2),
        ("a:\n\tb: 1\n", 2),
        ("a: [1, 2\n", 1),
        ("a: {b: 1, b: 2}\n", 1),
        ("a: {b, c: 1}\n", 1),
        ("a: {b:\n", 1),
        ("a: [b: 1]\n", 1),
        ("a: [1] 2\n", 1),
        ("a: [&x 1, *x]\n", 1),
        ("a: {b: 'c}\n", 1),
        ("a: [1,, 2]\n", 1),
        ("a: 1\nb\n", 2),
        ("  a: 1\nb: 2\n", 2),
        ("a: 'x\n", 1),
    ],
)
def test_yaml_that_is_not_supported_is_refused_with_its_line(text, line):
    with pytest.raises(InputError, match=f"^t.yaml, line {line}: "):
        parse_yaml(text, "t.yaml")


def test_a_deep_text_is_refused():
    with pytest.raises(InputError, match="nested more than"):
        parse_yaml("\n".join(f"{' ' * depth}a:" for depth in range(200)), "t.yaml")
    with pytest.raises(InputError, match="nested more than"):
        parse_yaml("a: " + "[" * 200, "t.yaml")
