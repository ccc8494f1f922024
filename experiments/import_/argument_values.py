"""`ArgumentValues`: arguments of a job by name, as switches, words, numbers and lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quadrille.algorithms.errors import InputError

Argument = str | bool
BRACKETS = str.maketrans("", "", "[]'\",")
"""Characters around the items of a list in a log."""
MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class ArgumentValues:
    """Arguments by name, without dashes and with `-` between words; True for a switch."""

    values: Mapping[str, Argument] = field(default_factory=dict)

    def on(self, name: str) -> bool:
        """Whether a switch is set."""
        return name in self.values

    def raw(self, name: str) -> str:
        """A value as written; empty without the argument."""
        value = self.values.get(name, "")
        return "" if value is True else str(value)

    def words(self, name: str) -> list[str]:
        """The words of a value, without brackets and commas."""
        value = self.values.get(name, "")
        return ["yes"] if value is True else str(value).replace(",", " ").translate(BRACKETS).split()

    def text(self, name: str, default: str = "") -> str:
        """The first word of a value; `yes` for a switch."""
        value = self.values.get(name, default)
        words = str(value).translate(BRACKETS).replace("AttnBackend.", "").split()
        return "yes" if value is True else words[0] if words else ""

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number.

        Raises
        ------
        InputError : the number is missing, or is none
        """
        text = self.text(name)
        if not text and default is not None:
            return default
        if not text:
            raise InputError(f"--{name} is missing: a whole number is needed")
        if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
            raise InputError(f"--{name} {text[:40]!r}: a whole number is accepted")
        return int(text)

    def number(self, name: str, default: float) -> float:
        """A number from 0.

        Raises
        ------
        InputError : no number
        """
        text = self.text(name)
        try:
            number = float(text) if text else default
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e30:
            raise InputError(f"--{name} {text[:40]!r}: a number from 0 is accepted")
        return number
