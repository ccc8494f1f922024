"""`Reader`: the checked values of a Hugging Face `config.json`, and the names of its keys of sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quadrille.algorithms.errors import InputError

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a `config.json` for each field of a shape; the first present key counts."""

    layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    sequence: tuple[str, ...] = ("max_position_embeddings",)
    vocabulary: tuple[str, ...] = ("vocab_size",)
    inner: tuple[str, ...] = ("intermediate_size",)
    key_heads: tuple[str, ...] = ("num_key_value_heads",)
    rotary_base: tuple[str, ...] = ("rope_theta",)


USUAL_KEYS = Keys()
"""The names of most model types."""
SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary", "inner")
WITH_DEFAULTS = ("inner",)


class Reader:
    """The checked values of a configuration file.

    Parameters
    ----------
    config : content of the file, or of the part that describes the language model
    path : path of the file, for messages
    """

    def __init__(self, config: Config, path: str | Path) -> None:
        self.config, self._path = config, path

    def renamed(self, names: Mapping[str, str]) -> "Reader":
        """The file with the usual names of keys, where it has others.

        Parameters
        ----------
        names : usual names by other names
        """
        others = {usual: self.config[name] for name, usual in names.items() if name in self.config}
        return Reader({**others, **self.config}, self._path)

    def error(self, text: str) -> InputError:
        """The error about the file with this text."""
        return InputError(f"model {self._path}: {text}")

    def check_present(self, keys: Keys, *, gated: bool, needed: tuple[str, ...] = ()) -> None:
        """Checks that the file has every key without a default; a gated MLP has no usual width.

        Parameters
        ----------
        keys : keys of the sizes
        gated : whether the MLP is gated
        needed : further keys that the model type needs

        Raises
        ------
        InputError : names all missing keys
        """
        fields = [field for field in SIZES if field not in WITH_DEFAULTS or (gated and field == "inner")]
        missing = [
            " or ".join(getattr(keys, field))
            for field in fields
            if not any(self.config.get(key) is not None for key in getattr(keys, field))
        ]
        missing += [key for key in needed if self.config.get(key) is None]
        if missing:
            raise self.error(f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing")

    def count(self, keys: tuple[str, ...]) -> int:
        """The whole number under the first present key; 0 if all are absent."""
        entry = next(((key, self.config[key]) for key in keys if self.config.get(key) is not None), None)
        return self.whole(*entry) if entry else 0

    def whole(self, key: str, value: object) -> int:
        """A whole number from 1, checked."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} = {value!r:.60}: a whole number from 1 is needed")
        return value

    def optional(self, key: str, default: int = 0) -> int:
        """The whole number under a key; the default where the key is absent or null."""
        value = self.config.get(key)
        return default if value is None else self.whole(key, value)

    def number(self, keys: tuple[str, ...], default: float, above: float = 0.0) -> float:
        """The number above a limit under the first present key, at the top level or among the rotary parameters."""
        entry = self._entry(keys)
        if entry is None:
            return default
        key, value = entry
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= above:
            raise self.error(f"{key} = {value!r:.60}: a number above {above:g} is needed")
        return float(value)

    def _entry(self, keys: tuple[str, ...]) -> tuple[str, object] | None:
        """The first present key and its value, at the top level or among the rotary parameters.

        Raises
        ------
        InputError : other values at the top level and among the rotary parameters
        """
        nested = self.rotary_parameters()
        for key in keys:
            inside, outside = nested.get(key), self.config.get(key)
            if inside is not None and outside is not None and inside != outside:
                raise self.error(f"{key} = {outside!r:.30} contradicts {inside!r:.30} in rope_parameters")
        everywhere = {**nested, **self.config}
        return next(((key, everywhere[key]) for key in keys if everywhere.get(key) is not None), None)

    def rotary_parameters(self, layers: str = "full_attention") -> Mapping[str, Any]:
        """The table `rope_parameters`, or its part for the layers of one type; empty without one.

        Source: transformers 5, modeling_rope_utils.py, RopeParameters: one table, or a table for each type of layer.
        """
        nested = self.config.get("rope_parameters") or {}
        if not isinstance(nested, dict):
            raise self.error(f"rope_parameters = {nested!r:.60}: a table is needed")
        tables = {name: table for name, table in nested.items() if isinstance(table, dict)}
        if not tables:
            return nested
        return tables.get(layers, next(iter(tables.values())))

    def flag(self, key: str, default: bool) -> bool:
        """The truth value under a key."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} = {value!r:.60}: true or false is needed")
        return value

    def word(self, keys: tuple[str, ...], default: str) -> tuple[str, str]:
        """The key and the word under the first present key."""
        key = next((key for key in keys if self.config.get(key) is not None), keys[0])
        value = self.config.get(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key} = {value!r:.60}: a word is needed")
        return key, value

    def share(self, keys: tuple[str, ...], default: float) -> float:
        """The number above 0 and up to 1 under the first present key."""
        value, entry = self.number(keys, default), self._entry(keys)
        if entry is not None and value > 1:
            raise self.error(f"{entry[0]} = {value:g}: a number above 0 and up to 1 is needed")
        return value
