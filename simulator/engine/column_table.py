"""`ColumnTable`: passes a named tuple of arrays to Numba kernels as one address, for fast calls and compilation.

Numba passes a named tuple as seven values for each array: 600 values for the two states of `event_loop.py`, in every
call of a kernel.  A named tuple in a `ColumnTable` is one value, and `w.run` in a kernel is one load; kernels compile
in about a third of the time.

Only compiled code sees a difference.  This module imports Numba.
"""

import zlib
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)
from numba.np import numpy_support

INTEGER = cgutils.intp_t


class ColumnTable:
    """A named tuple of one-dimensional arrays, and their addresses.

    Parameters
    ----------
    columns : arrays that live as long as the table and may not be replaced
    """

    def __init__(self, columns: NamedTuple) -> None:
        assert all(array.ndim == 1 and array.flags.c_contiguous for array in columns)
        self.columns = columns
        self.addresses = np.array([(array.ctypes.data, len(array)) for array in columns], np.int64)
        self.address = self.addresses.ctypes.data
        kinds = tuple(array.dtype.str for array in columns)
        self.type = _table_type(type(columns).__name__, columns._fields, kinds)


class TableType(types.Type):
    """Numba's type of a table: names and types of its columns."""

    def __init__(self, name: str, fields: tuple[str, ...], kinds: tuple[str, ...]) -> None:
        self.index = {field: index for index, field in enumerate(fields)}
        self.array = {
            field: types.Array(numpy_support.from_dtype(np.dtype(kind)), 1, "C")
            for field, kind in zip(fields, kinds, strict=True)
        }
        super().__init__(f"{name}_{zlib.crc32(repr((fields, kinds)).encode()):08x}")


_table_type = cache(TableType)
register_model(TableType)(models.OpaqueModel)


@typeof_impl.register(ColumnTable)
def _typeof(table: ColumnTable, _: Any) -> TableType:
    return table.type


@unbox(TableType)  # type: ignore[untyped-decorator, no-untyped-call]
def _unbox(_: TableType, table: Any, c: Any) -> Any:
    """The address, as a pointer."""
    number = c.pyapi.object_getattr_string(table, "address")
    pointer = c.pyapi.long_as_voidptr(number)
    c.pyapi.decref(number)
    return NativeValue(pointer)  # type: ignore[no-untyped-call]


@infer_getattr
class _Columns(AttributeTemplate):
    key = TableType

    def generic_resolve(self, table: TableType, name: str) -> Any:  # type: ignore[override]
        return table.array.get(name)


@lower_getattr_generic(TableType)  # type: ignore[untyped-decorator, no-untyped-call]
def _column(context: Any, builder: Any, table: TableType, pointer: Any, name: str) -> Any:
    """The array of a column, from the table's addresses."""
    kind, index = table.array[name], table.index[name]
    addresses = builder.bitcast(pointer, INTEGER.as_pointer())

    def load(at: int) -> Any:
        value = builder.load(builder.gep(addresses, [INTEGER(at)]))
        value.set_metadata("invariant.load", builder.module.add_metadata([]))  # arrays stay where they are
        return value

    element = context.get_data_type(kind.dtype)
    length, size = load(2 * index + 1), INTEGER(context.get_abi_sizeof(element))
    values = {
        "nitems": length,
        "itemsize": size,
        "data": builder.inttoptr(load(2 * index), element.as_pointer()),
        "shape": length,
        "strides": size,
    }
    model = context.data_model_manager[kind]
    array = model.get_value_type()(None)  # all zero: nobody owns it
    for field, value in values.items():
        at = model.get_field_position(field)
        array = builder.insert_value(array, value, [at, 0] if field in ("shape", "strides") else at)
    return array
