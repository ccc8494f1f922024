"""Files that users hand in: what is no regular file, too long, no text, or nested too deeply is refused at once."""

import os
import socket

import pytest

from quadrille.algorithms.formats.input_files import parse_json, parse_toml, read_bytes, read_text


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    for path in (tmp_path / "pipe", "/dev/zero", "/dev/null", tmp_path):
        with pytest.raises(OSError) as refused:
            read_bytes(path)
        assert refused.value.strerror == "not a regular file"
    for path in (tmp_path / "socket", tmp_path / "nowhere", "n" * 300, "zero\0byte", ""):
        with pytest.raises(OSError) as refused:
            read_bytes(path)
        assert refused.value.strerror
    listening.close()


def test_no_more_than_the_limit_is_read(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * 100)
    assert read_bytes(tmp_path / "long", 100) == b"x" * 100
    with pytest.raises(OSError) as refused:
        read_bytes(tmp_path / "long", 99)
    assert refused.value.strerror == "longer than 99 bytes, the limit of such a file"
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError):
        read_bytes(tmp_path / "sparse", 1000)


def test_text_is_utf8_with_or_without_a_mark(tmp_path):
    (tmp_path / "marked").write_bytes("\ufeffé".encode())
    assert read_text(tmp_path / "marked") == "é"
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    with pytest.raises(OSError) as refused:
        read_text(tmp_path / "latin")
    assert refused.value.strerror == "not text in UTF-8"


@pytest.mark.parametrize(
    ("parse", "text", "fault"),
    [
        (parse_json, "{", "truncated or not JSON"),
        (parse_json, b'"\xe9"', "not"),
        (parse_json, "[" * 100_000, "nested too deeply"),
        (parse_json, '{"a": NaN}', "not JSON"),
        (parse_toml, "a =", "truncated or not TOML"),
        (parse_toml, "a = " + "9" * 5000, "not TOML"),
        (parse_toml, "a = " + "[" * 100_000, "nested too deeply"),
        (parse_toml, ".".join(["a"] * 100_000) + " = 1", "nested too deeply"),
    ],
)
def test_what_cannot_be_parsed_is_one_sentence(parse, text, fault):
    with pytest.raises(ValueError, match=fault) as refused:
        parse(text)
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)
