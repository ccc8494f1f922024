"""Protocol Buffers wire format: numbers, strings and nested messages with field numbers, written and read.

A message is a sequence of fields, each a key (field number and wire type) and a value.  A file may hold several
messages, each behind its length.

Source: "Encoding", Protocol Buffers documentation, https://protobuf.dev/programming-guides/encoding/.
"""

import struct
from collections.abc import Iterator, Sequence

VARINT, DOUBLE, LENGTH, FLOAT = 0, 1, 2, 5
"""Wire types: a number of variable length, 8 bytes, bytes behind their length, 4 bytes."""
MOST_SHIFT = 63
WORD = 1 << 64


def varint(number: int) -> bytes:
    """A number in groups of 7 bits, the lowest first; a negative one as its two's complement of 64 bits.

    >>> varint(300).hex(), read_varint(varint(300), 0)
    ('ac02', (300, 2))
    """
    number %= WORD
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it.

    Raises
    ------
    ValueError : the content ends, or the number has more than 64 bits
    """
    number = shift = 0
    while True:
        if at >= len(content):
            raise ValueError("ends within a number")
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number % WORD, at
        shift += 7
        if shift > MOST_SHIFT:
            raise ValueError("a number has more than 64 bits")


def number_field(field: int, number: int) -> bytes:
    """A field with a number."""
    return varint(field << 3 | VARINT) + varint(number)


def double_field(field: int, number: float) -> bytes:
    """A field with a number of double precision."""
    return varint(field << 3 | DOUBLE) + struct.pack("<d", number)


def bytes_field(field: int, content: bytes) -> bytes:
    """A field with a string or a nested message."""
    return varint(field << 3 | LENGTH) + varint(len(content)) + content


def packed_field(field: int, numbers: Sequence[int]) -> bytes:
    """A repeated field of numbers in one piece; nothing for no numbers."""
    return bytes_field(field, b"".join(map(varint, numbers))) if numbers else b""


def delimited(message: bytes) -> bytes:
    """A message behind its length."""
    return varint(len(message)) + message


def messages(content: bytes) -> Iterator[bytes]:
    """Yields the messages of a file, each of which stands behind its length.

    Raises
    ------
    ValueError : the content ends within a message
    """
    at = 0
    while at < len(content):
        size, at = read_varint(content, at)
        if size > len(content) - at:
            raise ValueError(f"ends within a message of {size} bytes")
        yield content[at : at + size]
        at += size


def fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yields the fields of a message, each with its number: integers, numbers of fixed size, or bytes.

    >>> list(fields(number_field(1, 5) + bytes_field(2, b"ab") + double_field(3, 0.5)))
    [(1, 5), (2, b'ab'), (3, 0.5)]

    Raises
    ------
    ValueError : no message
    """
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        field, kind = key >> 3, key & 7
        if kind == VARINT:
            number, at = read_varint(message, at)
            yield field, number
        elif kind == LENGTH:
            size, at = read_varint(message, at)
            if size > len(message) - at:
                raise ValueError(f"ends within field {field}")
            yield field, message[at : at + size]
            at += size
        elif kind in (DOUBLE, FLOAT):
            size = 8 if kind == DOUBLE else 4
            if size > len(message) - at:
                raise ValueError(f"ends within field {field}")
            yield field, struct.unpack("<d" if kind == DOUBLE else "<f", message[at : at + size])[0]
            at += size
        else:
            raise ValueError(f"field {field} has the unknown wire type {kind}")


def packed_numbers(content: bytes) -> list[int]:
    """The numbers of a packed field.

    >>> packed_numbers(varint(1) + varint(300))
    [1, 300]

    Raises
    ------
    ValueError : the content ends within a number
    """
    numbers, at = [], 0
    while at < len(content):
        number, at = read_varint(content, at)
        numbers.append(number)
    return numbers
