"""Device arrays made of host memory, and the part of CuPy's arithmetic that kernels of layers use.

What a function gives is known in shape and dtype at once, and in its values when the
stream has come to it.  Nothing here reads values for the host: a number taken out
of an array, a mask as an index (whose result is as long as it has ones) and every NumPy
function or array that meets a device array are refused.
"""

import types
from functools import partial

import numpy as np

FUNCTIONS = [
    "arange", "clip", "concatenate", "cos", "exp", "isnan", "log", "logaddexp", "matmul", "maximum", "minimum", "ones",
    "sin", "sqrt", "sum", "tanh", "triu", "where",
]  # fmt: skip
OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "mod": "remainder", "and": "bitwise_and",
    "or": "bitwise_or", "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
COMPARISONS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
SUMMED_AT = (np.float16, np.float32, np.float64, np.int32, np.uint32, np.uint64)
"""What CUDA's atomic additions can add."""
HOST_WAITS = "the host would have to wait for the device"


class Array:
    """A device array; only this module and the device know its memory."""

    __array_ufunc__ = None  # NumPy's functions and arrays refuse it

    def __init__(self, cupy, memory):
        self._cupy, self._memory = cupy, memory
        self.dtype, self.shape, self.size, self.ndim = memory.dtype, memory.shape, memory.size, memory.ndim
        self.nbytes, self.itemsize, self.strides = memory.nbytes, memory.itemsize, memory.strides
        self.flags = types.SimpleNamespace(c_contiguous=memory.flags.c_contiguous)
        self.data = types.SimpleNamespace(ptr=memory.__array_interface__["data"][0])

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def _refuse(self, *_):
        raise TypeError(HOST_WAITS)

    __bool__ = __float__ = __int__ = __index__ = item = tolist = get = _refuse

    def __len__(self):
        return len(self._memory)

    def __iter__(self):
        return (self[place] for place in range(len(self)))

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(one, Array) for one in index):
            written_out = any(one is ... for one in checked(index))
            return Array(self._cupy, self._memory[index if written_out else (*index, ...)])  # a lone element too
        return lazily(self._cupy, "take", lambda memory, *where: memory[where], self, *checked(index))

    def __setitem__(self, index, value):
        index = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(one, Array) for one in index):
            into = self[index]
            if isinstance(value, Array) and (value.data.ptr, value.strides) == (into.data.ptr, into.strides):
                return  # what an operator in place leaves to be assigned
            index, target = (), into
        else:
            target = self

        def assign(memory, given, *where):
            memory[where or ...] = given

        assign(np.empty(target.shape, target.dtype), *map(shadow, (value, *checked(index))))
        self._cupy.hand("assign", partial(call, assign, target, value, *index))

    def reshape(self, *shape):
        reshaped = self._memory.reshape(*shape)
        if self.size == 0 or np.may_share_memory(reshaped, self._memory):
            return Array(self._cupy, reshaped)
        assert self._cupy.streams_in_use, "this reshape would copy, and no stream is in use"
        return lazily(self._cupy, "reshape", lambda memory: memory.reshape(*shape), self)

    def view(self, dtype):
        return Array(self._cupy, self._memory.view(dtype))

    @property
    def T(self):
        return Array(self._cupy, self._memory.T)

    def transpose(self, *axes):
        return Array(self._cupy, self._memory.transpose(*axes))

    def __neg__(self):
        return lazily(self._cupy, "negative", np.negative, self)

    def __abs__(self):
        return lazily(self._cupy, "absolute", np.absolute, self)

    def mean(self, axis=None, keepdims=False):
        return lazily(self._cupy, "mean", partial(np.mean, axis=axis, keepdims=keepdims), self)

    def copy(self):
        return lazily(self._cupy, "copy", np.copy, self)

    def __invert__(self):
        return lazily(self._cupy, "invert", np.invert, self)

    def astype(self, dtype, copy=True):
        if not copy and self.dtype == dtype:
            return self
        return lazily(self._cupy, "astype", lambda memory: memory.astype(dtype), self)

    def sum(self, axis=None, keepdims=False):
        return lazily(self._cupy, "sum", partial(np.sum, axis=axis, keepdims=keepdims), self)

    def max(self, axis=None, keepdims=False):
        return lazily(self._cupy, "max", partial(np.max, axis=axis, keepdims=keepdims), self)

    def fill(self, value):
        self._cupy.hand("fill", partial(self._memory.fill, value))


def _operator(function):
    def plain(self, other):
        return lazily(self._cupy, function.__name__, function, self, other)

    def reflected(self, other):
        return lazily(self._cupy, function.__name__, function, other, self)

    def in_place(self, other):
        return lazily(self._cupy, function.__name__, function, self, other, out=self)

    return plain, reflected, in_place


for short, long in OPERATORS.items():
    for prefix, method in zip(("__", "__r", "__i"), _operator(getattr(np, long)), strict=True):
        setattr(Array, f"{prefix}{short}__", method)
for short, long in COMPARISONS.items():
    setattr(Array, f"__{short}__", _operator(getattr(np, long))[0])


def checked(index):
    """An index that the device can use without the host."""
    assert not any(isinstance(one, Array) and one.dtype == bool for one in index), f"{HOST_WAITS}: a mask"
    assert not any(isinstance(one, np.ndarray) for one in index), "an index on the host"
    return index


def shadow(operand):
    """An operand of the same shape and dtype whose values do not matter."""
    assert not isinstance(operand, np.ndarray), "an array on the host meets one on the device"
    if isinstance(operand, list | tuple):
        return [shadow(one) for one in operand]
    return np.zeros(operand.shape, operand.dtype) if isinstance(operand, Array) else operand


def memory_of(operand):
    if isinstance(operand, list | tuple):
        return [memory_of(one) for one in operand]
    return operand._memory if isinstance(operand, Array) else operand


def call(function, *operands):
    """Calls the function on the values that the stream has reached; the device gives no warnings."""
    with np.errstate(all="ignore"):
        return function(*map(memory_of, operands))


def lazily(cupy, name, function, *operands, out=None):
    """The result of a function of arrays, computed when the stream reaches it."""
    with np.errstate(all="ignore"):
        looks = np.asarray(function(*map(shadow, operands)))
    if out is None:
        out = Array(cupy, np.full(looks.shape, 0, looks.dtype))
        out._memory.view(np.uint8 if looks.ndim else looks.dtype)[...] = 0xFF if looks.dtype != bool else 1
    else:
        assert out.shape == looks.shape and np.can_cast(looks.dtype, out.dtype, "same_kind"), (out.shape, looks.shape)

    def act():
        out._memory[...] = call(function, *operands)

    cupy.hand(name, act)
    return out


class Function:
    """A function of the module; `add` also sums at repeated indices."""

    def __init__(self, cupy, name):
        self._cupy, self._name, self._function = cupy, name, getattr(np, name)

    def __call__(self, *operands, out=None, **options):
        return lazily(self._cupy, self._name, partial(self._function, **options), *operands, out=out)

    def at(self, into, index, values):
        assert self._name == "add" and into.dtype in SUMMED_AT and into.dtype == values.dtype
        self._cupy.hand("add at", partial(call, np.add.at, into, *checked((index,)), values))
