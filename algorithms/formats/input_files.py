"""Input files: safe reading of JSON and TOML files that users give, with every fault as an error of one sentence.

Only regular files are read, up to a size limit: reading a pipe may block, and a device such as /dev/zero never ends. A
text can nest too deeply for a parser, or hold a number with too many digits. The functions here raise `OSError` for a
file that cannot be read, with the reason in `strerror`, and `ValueError` for content that cannot be parsed.
"""

import errno
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import IO, Any

import msgspec

MOST_BYTES = 2**28
"""Limit of a file's size [B], unless a reader has its own."""
DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")
"""A TOML key of more than 64 dotted words; tomllib takes the square of the key's length."""
TOO_DEEP = "is nested too deeply to be a file of Quadrille"


def open_regular(path: str | Path) -> IO[bytes]:
    """The file at `path`, open for reading, if it is a regular file.

    Raises
    ------
    OSError : there is no such file, or it is a folder, a pipe, a device or a socket
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, f"not the name of a file ({error})") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def is_folder(path: str | Path) -> bool:
    """Whether `path` names a folder; a text that cannot be a name, such as one of 300 letters, names none."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for such a text


def is_file(path: str | Path) -> bool:
    """Whether `path` names a regular file; a text that cannot be a name names none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for such a text


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of the regular file at `path`.

    Raises
    ------
    OSError : a file that cannot be opened (`open_regular`), or is longer than `most_bytes`
    """
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"longer than {most_bytes} bytes, the limit of such a file")
    return content


def read_text(path: str | Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of the regular file at `path`, in UTF-8, with or without a byte order mark.

    Raises
    ------
    OSError : as by `read_bytes`, or the content is not text in UTF-8
    """
    try:
        return read_bytes(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "not text in UTF-8") from None


def parse_json(content: str | bytes) -> Any:
    """The value in a JSON text.

    >>> parse_json('{"layers": 2}'), parse_json("[" * 3 + "]" * 3)
    ({'layers': 2}, [[[]]])

    Raises
    ------
    ValueError : no JSON, or nested too deeply
    """
    try:
        return msgspec.json.decode(content)
    except UnicodeDecodeError:
        raise ValueError("is not text in UTF-8") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"is truncated or not JSON: {error}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a TOML text.

    >>> parse_toml("layers = 2")
    {'layers': 2}

    Raises
    ------
    ValueError : no TOML, nested too deeply, or a number of thousands of digits
    """
    if DEEP_KEY.search(text):
        raise ValueError(TOO_DEEP)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError as error:
        raise ValueError(f"is truncated or not TOML: {error}") from None
