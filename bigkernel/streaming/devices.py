"""Devices on which blocks are computed: the array library of each, and copies to it and back.

The rows of a chunk are copied to the device once, in their stored dtype. After that a function takes its library from
the array that it is given (`namespace`): NumPy, or one with the array API standard, PyTorch for GPUs. Totals are dicts
of NumPy arrays; sums of a segment stay on the device and come down once (`chunk.Workspace`). A device is named in
settings and tasks, and never pickled. No array library but NumPy is imported until a device is asked for.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import DTypeLike

from bigkernel.arrays import Array, DType, Library, Plain
from bigkernel.errors import ConfigError

FAST_FLOAT64 = ((8, 0), (9, 0), (10, 0))  # compute capabilities with float64 products as fast as those of float32
NUMPY: type = np.ndarray
_WRITES = ("torch", "cupy")  # libraries whose functions have `out=`


@dataclass(frozen=True, eq=False)
class Device:
    """A place for arrays; made by `device_of`, one of each name in a process."""

    name: str
    xp: Library = np  # namespace of its library, of the array API standard
    place: object = None  # the library's own object for the device
    host: object = None  # that for main memory; None: the device is main memory, and arrays are NumPy's
    # by the identity of the original
    _copies: dict[int, tuple[weakref.ref[object], Plain]] = field(default_factory=dict, repr=False)

    def array(self, x: Array) -> Array:
        """Copy an array of the host to the device, of the same dtype; the host's device returns it as it is."""
        if self.host is None:
            return x
        if x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous:
            return self.array(x.T).T  # in its order
        copy: Array = self.xp.asarray(np.ascontiguousarray(x), device=self.place, copy=True)
        return copy

    def to_host(self, x: Array) -> Array:
        """Copy an array of the device to the host; one that is there already is returned as it is."""
        if isinstance(x, NUMPY):
            return x
        from array_api_compat import to_device

        return np.asarray(to_device(x, self.host))

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
        """Allocate an array without values."""
        out: Array = self.xp.empty(shape, dtype=getattr(self.xp, np.dtype(dtype).name), device=self.place)
        return out

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Allocate an array of zeros, float64."""
        out: Array = self.xp.zeros(shape, dtype=self.xp.float64, device=self.place)
        return out

    def moved(self, value: Plain) -> Plain:
        """Return a copy with arrays on the device of an array, a dataclass with arrays, or a sequence of such."""
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, tuple | list):
            return tuple(map(self.moved, value))
        if not is_dataclass(value):
            return value
        owner: Plain = value
        given, kinds = {one.name: getattr(owner, one.name) for one in fields(owner)}, (np.ndarray, tuple, list)
        return replace(owner, **{name: self.moved(one) for name, one in given.items() if isinstance(one, kinds)})

    def once(self, value: Plain) -> Plain:
        """Return `moved(value)`, copied once a process as long as the value lives, which is not changed meanwhile."""
        if self.host is None or value is None:
            return value
        key, copies = id(value), self._copies
        if key not in copies:
            copies[key] = weakref.ref(value, lambda _: copies.pop(key, None)), self.moved(value)
        return copies[key][1]

    def wait(self) -> None:
        """Wait for what the device still computes, so that times and errors belong to their stage."""
        if self.name == "cuda":
            self.xp.cuda.synchronize(self.place)

    @property
    def fast_float64(self) -> bool:
        """Whether float64 products cost about as much as float32 ones, so that sums are float64."""
        return self.name != "cuda" or tuple(self.xp.cuda.get_device_capability(self.place)) in FAST_FLOAT64

    @property
    def free_bytes(self) -> int:
        """Bytes of its own memory that are free, by all processes; 0 if the library does not tell."""
        return int(self.xp.cuda.mem_get_info(self.place)[0]) if self.name == "cuda" else 0

    @property
    def total_bytes(self) -> int:
        """Bytes of its own memory; 0 if the library does not tell."""
        return int(self.xp.cuda.mem_get_info(self.place)[1]) if self.name == "cuda" else 0

    @property
    def held_bytes(self) -> int:
        """Bytes of arrays of this process on it, of sweeps or not; 0 if the library does not tell."""
        return int(self.xp.cuda.memory_allocated(self.place)) if self.name == "cuda" else 0

    @property
    def peak_bytes(self) -> int:
        """Most bytes of arrays of this process on it at once; 0 if the library does not tell."""
        return int(self.xp.cuda.max_memory_allocated(self.place)) if self.name == "cuda" else 0

    def limit(self, most_bytes: int) -> None:
        """Let the library end in an error where this process would take more memory of the device."""
        if self.name == "cuda":
            self.xp.cuda.set_per_process_memory_fraction(min(1.0, most_bytes / self.total_bytes), self.place)


HOST = Device("cpu")


@cache
def device_of(name: str) -> Device:
    """Return the device of a name: "cpu", "cuda", or "auto" for "cuda" where this process can use one.

    For tests also "torch", PyTorch on the CPU, which runs the very calls that a GPU gets, and "strict", the second
    device of array-api-strict, where every mixture with NumPy is an error. `ConfigError`: an unknown name, a library
    that is not installed, or no GPU that it can use.
    """
    if name == "cpu":
        return HOST
    if name == "auto":
        try:
            return device_of("cuda")
        except ConfigError:
            return HOST
    if name == "strict":
        import array_api_strict

        places = array_api_strict.__array_namespace_info__().devices()
        return Device(name, array_api_strict, places[1], places[0])
    if name not in ("cuda", "torch"):
        raise ConfigError(f"device: expected one of cpu, cuda, auto, found {name!r}")
    try:
        import array_api_compat.torch as torch
    except ImportError as error:
        raise ConfigError(f"device {name!r}: {error.name} is not installed; pip install 'bigkernel[gpu]'") from error
    if name == "torch":
        return Device(name, torch, torch.device("cpu"), "cpu")
    if not torch.cuda.is_available():
        built = torch.version.cuda or "none: a build for the CPU"
        raise ConfigError(f"device 'cuda': PyTorch finds no GPU (CUDA of the build: {built}); see `nvidia-smi`")
    return Device(name, torch, torch.device("cuda", torch.cuda.current_device()), "cpu")


def namespace(x: Array) -> Library:
    """Return the library of an array: NumPy, or a namespace of the array API standard."""
    if isinstance(x, NUMPY):
        return np
    from array_api_compat import array_namespace

    return array_namespace(x)


def dtype_of(x: Array) -> DType:
    """Return NumPy's dtype of an array of any library."""
    return x.dtype if isinstance(x, NUMPY) else np.dtype(str(x.dtype).rpartition(".")[2])


def converted(x: Array, dtype: DTypeLike, *, copy: bool = False) -> Array:
    """Return an array in a dtype of NumPy, with `copy` also one that has it already as a new array."""
    if isinstance(x, NUMPY):
        return x.astype(dtype, copy=copy)
    out: Array = (xp := namespace(x)).astype(x, getattr(xp, np.dtype(dtype).name), copy=copy)
    return out


def all_of(mask: Array) -> bool:
    """Return whether all of a mask is true; waits for the device."""
    return bool(mask.all() if isinstance(mask, NUMPY) else namespace(mask).all(mask))


def empty_like(x: Array, shape: tuple[int, ...]) -> Array:
    """Allocate an array without values, of the dtype and on the device of x."""
    if isinstance(x, NUMPY):
        return np.empty(shape, x.dtype)
    from array_api_compat import device

    out: Array = namespace(x).empty(shape, dtype=x.dtype, device=device(x))
    return out


def write(out: Array, name: str, *arguments: Array | float | None) -> None:
    """Write what a function of the library gives into `out`: `write(x, "exp", x)` replaces x by exp(x) in place."""
    if isinstance(out, NUMPY):
        getattr(np, name)(*arguments, out=out)
    elif (xp := namespace(out)).__name__.rpartition(".")[2] in _WRITES:
        getattr(xp, name)(*arguments, out=out)
    else:
        out[...] = getattr(xp, name)(*arguments)


def row_squares(x: Array) -> Array:
    """Compute Σ x² of every row of x (b, d), (b,)."""
    squares: Array = np.einsum("ij,ij->i", x, x) if isinstance(x, NUMPY) else namespace(x).vecdot(x, x)
    return squares
