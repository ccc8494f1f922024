"""XML parsed into `Element`s that know their line.

Nothing outside the text is read: a document type that names a file, as in SimGrid's
platforms, is ignored, and a document that declares an entity is an error.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from xml.parsers import expat

from quadrille.algorithms.errors import InputError

DEEPEST = 64


@dataclass(slots=True)
class Element:
    """An XML element: its attributes, its children, its text, and the path and line at which it begins."""

    tag: str
    attributes: dict[str, str]
    path: str
    line: int
    children: list["Element"] = field(default_factory=list)
    text: str = ""

    def error(self, text: str) -> InputError:
        """An InputError whose message begins with the element's path and line."""
        return InputError(f"{self.path}, line {self.line}: {text}")

    def needed(self, name: str) -> str:
        """The value of a required attribute."""
        if name not in self.attributes:
            raise self.error(f"<{self.tag}> lacks {name}")
        return self.attributes[name]

    def check_attributes(self, *accepted: str) -> None:
        """Raises InputError if the element has an attribute that is not accepted."""
        if unknown := [name for name in self.attributes if name not in accepted]:
            raise self.error(
                f"<{self.tag}> has {unknown[0]}={self.attributes[unknown[0]]!r}, which is not supported; "
                f"accepted are {', '.join(accepted)}"
            )

    def check_defaults(self, **defaults: tuple[str, ...]) -> None:
        """Removes attributes that state their default; raises InputError for another value.

        Parameters
        ----------
        defaults : the spellings of the default of each attribute
        """
        for name, words in defaults.items():
            if name in self.attributes and self.attributes.pop(name) not in words:
                raise self.error(f"<{self.tag}> has another {name} than {words[0]!r}, which is not supported")

    def quantity(self, name: str, units: dict[str, float], *, above: bool, default: str | None = None) -> float:
        """The value of an attribute such as `50us`, in the base unit.

        Parameters
        ----------
        units : factor of each unit to the base unit
        above : whether the value must be above 0; else it may be 0
        default : text of a missing attribute; None if the attribute is required

        >>> Element("link", {"latency": "50us"}, "net.xml", 3).quantity("latency", SECONDS, above=False)
        5e-05
        """
        text = self.attributes.get(name, default) if default is not None else self.needed(name)
        match = re.fullmatch(r"\s*([0-9.]{1,40}(?:[eE][-+]?[0-9]{1,3})?)\s*([A-Za-z]*)\s*", text or "")
        try:
            value = float(Fraction(match[1]) * Fraction(str(units[match[2]]))) if match else float("nan")
        except (KeyError, ValueError, OverflowError):
            value = float("nan")
        if not (0 <= value < 1e300) or (above and value == 0):
            names = ", ".join(unit for unit in units if unit)
            raise self.error(
                f"<{self.tag}> has {name}={text!r}; it must be a number {'above' if above else 'from'} 0 with a unit, "
                f"one of {names}"
            )
        return value


def _scaled(base: str, prefixes: dict[str, float]) -> dict[str, float]:
    return {prefix + base: factor for prefix, factor in prefixes.items()}


DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
BYTES_PER_SECOND = {
    "": 1.0,
    **_scaled("Bps", DECIMAL | BINARY),
    **{unit: factor / 8 for unit, factor in _scaled("bps", DECIMAL | BINARY).items()},
}
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12, "m": 60.0, "h": 3600.0}


def elements(text: str, path: str) -> Element:
    r"""The outermost element of an XML document.

    >>> elements("<a>\n<b c='1'/></a>", "net.xml").children[0].line
    2

    Raises
    ------
    InputError : text that is not XML, a declared entity, or elements nested more than `DEEPEST` deep; with the line
    """
    root = Element("", {}, path, 0)
    open_elements = [root]
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, path, parser.CurrentLineNumber)
        if len(open_elements) > DEEPEST:
            raise element.error(f"<{tag}> is nested more than {DEEPEST} deep")
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(_tag: str) -> None:
        open_elements.pop()

    def characters(text: str) -> None:
        open_elements[-1].text += text

    def entity(name: str, *_: object) -> None:
        raise InputError(f"{path}, line {parser.CurrentLineNumber}: entity {name!r} is declared; entities are refused")

    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = start, end, entity
    parser.CharacterDataHandler, parser.buffer_text = characters, True
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise InputError(f"{path}, line {error.lineno}: is not XML: {reason}") from None
    return root.children[0]


def whole_numbers(element: Element, text: str, name: str) -> Iterator[int]:
    """The whole numbers of a list such as `4,4`, which attribute `name` of the element has."""
    for word in text.split(","):
        if not (word.strip().isascii() and word.strip().isdigit() and len(word.strip()) < 10):
            raise element.error(f"<{element.tag}> has {name}={text!r}; {word.strip()!r} is not a whole number")
        yield int(word)
