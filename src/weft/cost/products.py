"""The time of what is made of matrix products: matmuls, attention, convolutions.

Each function takes the device, the op and the specs of its tensor arguments. Sizes that are symbols count by their
hints; where one is zero nothing is multiplied, and only the result is filled.
"""

from __future__ import annotations

from math import cbrt, prod
from typing import Protocol

from weft.cost.sizes import total
from weft.ir.dims import hint
from weft.ir.program import Op
from weft.ir.specs import TensorSpec


class Device(Protocol):
    """What prices of single ops are made of. A Machine is one."""

    @property
    def launch_us(self) -> float:
        """What a kernel takes even if it does nothing."""

    @property
    def attention_efficiency(self) -> float:
        """The rate of fused attention, as a part of that of a matmul with as much arithmetic."""

    def moved_us(self, nbytes: int) -> float:
        """How long it takes to read and write so many bytes, without the launch."""

    def matmul_us(self, dtype: str, b: int, m: int, n: int, k: int) -> float:
        """How long b products of m×k by k×n take in one kernel, launch included. No size is zero."""


Inputs = tuple[TensorSpec, ...]


def streamed(device: Device, nbytes: int) -> float:
    """A kernel that takes as long as its bytes do."""
    return device.launch_us + device.moved_us(nbytes)


def matmul(device: Device, op: Op, inputs: Inputs) -> float:
    """Matrices, or stacks of them, that are multiplied as torch broadcasts them; what comes behind them is free."""
    left, right = inputs[:2]
    k, n = _dim(left, -1), _dim(right, -1) if len(right.shape) > 1 else 1
    results = _volume(_result(op, inputs))
    if len(right.shape) <= 2:  # one matrix for all rows: the stack is one tall matrix
        return _product(device, op, left, 1, results // max(n, 1), n, k)
    m = _dim(left, -2)
    return _product(device, op, left, results // max(m * n, 1), m, n, k)


def biased_matmul(device: Device, op: Op, inputs: Inputs) -> float:
    """A matmul whose first argument is added to the result: the kernel does that on the way."""
    return matmul(device, op, inputs[1:])


def linear(device: Device, op: Op, inputs: Inputs) -> float:
    """A matmul whose right side is given transposed."""
    n, k = _dim(inputs[1], -2), _dim(inputs[0], -1)
    return _product(device, op, inputs[0], 1, _volume(_result(op, inputs)) // max(n, 1), n, k)


def grouped_matmul(device: Device, op: Op, inputs: Inputs) -> float:
    """A matmul for each group, where the offsets cut one side, or both: taken to be cut evenly."""
    left, right = inputs[:2]
    if len(left.shape) == len(right.shape) == 3:
        return matmul(device, op, inputs)
    groups = max(_dim(next((spec for spec in (left, right, *_tensors(op)) if len(spec.shape) == 3), left), 0), 1)
    m, k, n = _dim(left, -2), _dim(left, -1), _dim(right, -1)
    if len(left.shape) == 3:
        n = -(-n // groups)
    elif len(right.shape) == 3:
        m = -(-m // groups)
    else:
        k = -(-k // groups)
    return _product(device, op, left, groups, m, n, k)


def attention(device: Device, op: Op, inputs: Inputs, causal: bool) -> float:
    """Queries with keys, and the weights with the values, in one kernel that keeps the scores on chip."""
    query, key, value = inputs[:3]
    return _fused_products(device, op, inputs, _scores(query, key, causal) * (_dim(query, -1) + _dim(value, -1)))


def attention_backward(device: Device, op: Op, inputs: Inputs, causal: bool, first: int = 1) -> float:
    """Five products: the scores once more, and the gradients of scores, queries, keys and values.

    Queries, keys and values are the arguments from `first` on.
    """
    query, key, value = inputs[first : first + 3]
    scores = _scores(query, key, causal)
    return _fused_products(device, op, inputs, scores * (3 * _dim(query, -1) + 2 * _dim(value, -1)))


def _scores(query: TensorSpec, key: TensorSpec, causal: bool) -> float:
    """How many pairs of a query and a key are looked at, in all heads: a causal mask leaves half of them."""
    return _volume(query, -1) * _dim(key, -2) / (2 if causal else 1)


def convolution(device: Device, op: Op, inputs: Inputs) -> float:
    """Every place of the image, unrolled, times the kernel."""
    m, n, k, groups = _unrolled(op, inputs[0], inputs[1], _result(op, inputs))
    return max(_product(device, op, inputs[0], groups, m, n, k), _bytes_us(device, op, inputs))


def convolution_backward(device: Device, op: Op, inputs: Inputs) -> float:
    """The same product for the image's gradient and for the kernel's, where they are asked for."""
    result, image, weight = inputs[:3]
    m, n, k, groups = _unrolled(op, image, weight, result, first=1)
    wanted = [isinstance(spec, TensorSpec) for spec in op.out]
    us = 0.0
    if wanted[:1] == [True]:
        us += _product(device, op, result, groups, m, k, n)
    if wanted[1:2] == [True]:
        us += _product(device, op, result, groups, n, k, m)
    return max(us, _bytes_us(device, op, inputs))


def _unrolled(
    op: Op, image: TensorSpec, weight: TensorSpec, result: TensorSpec, first: int = 0
) -> tuple[int, int, int, int]:
    """A convolution as a product for each group: rows, columns, depth, groups. `first` is where its arguments begin."""
    transposed, groups = op.argument(6 + first), op.argument(8 + first)
    groups = groups if isinstance(groups, int) and groups > 0 else 1
    kernel = prod(map(hint, weight.shape[2:]))
    places = image if transposed else result  # where the kernel is laid on
    rows = _dim(places, 0) * prod(map(hint, places.shape[2:]))
    outside, inside = _dim(weight, 0), _dim(weight, 1)
    if transposed:
        return rows, inside * kernel, outside // groups, groups
    return rows, outside // groups, inside * kernel, groups


def _fused_products(device: Device, op: Op, inputs: Inputs, work: float) -> float:
    """So many multiplications in one kernel that reads and writes its arguments and results once.

    They run at a part of the rate of a cube of a matmul with as many: the intermediate results need no memory, so the
    shape of the single products does not count, but the softmax between them takes its time.
    """
    least = _bytes_us(device, op, inputs)
    side = round(cbrt(work))
    if side == 0:
        return least
    whole = device.matmul_us(inputs[1].dtype, 1, side, side, side) * (work / side**3)
    return max(whole / device.attention_efficiency, least)


def _product(device: Device, op: Op, factor: TensorSpec, b: int, m: int, n: int, k: int) -> float:
    if 0 in (b, m, n, k):
        return streamed(device, total(op.out))
    return device.matmul_us(factor.dtype, b, m, n, k)


def _bytes_us(device: Device, op: Op, inputs: Inputs) -> float:
    return streamed(device, total(inputs) + total(op.out))


def _tensors(op: Op) -> Inputs:
    return tuple(spec for spec in op.out if isinstance(spec, TensorSpec))


def _result(op: Op, inputs: Inputs) -> TensorSpec:
    """What is computed; of an op that returns nothing, what it writes, which is its first argument."""
    return (*_tensors(op), *inputs)[0]


def _dim(spec: TensorSpec, place: int) -> int:
    """A size, counted from the end if negative; one where there are not so many."""
    return hint(spec.shape[place]) if -len(spec.shape) <= place < len(spec.shape) else 1


def _volume(spec: TensorSpec, end: int | None = None) -> int:
    return prod(map(hint, spec.shape[:end]))
