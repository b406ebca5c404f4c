"""A fitted model as an ONNX graph, from its predictor alone, for other languages and processes without bigkernel.

Nodes are those of `statistics.predictor` and `statistics.blend`, in one dtype, with landmarks as `Kernel.bind` prepares
them. Opset 18, of December 2022, is the first whose reductions take axes as today's do, and has all that is needed;
onnxruntime 1.14 reads it. Shapes: n rows, d features, m landmarks, c targets or classes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count
from typing import Any, Literal

import numpy as np

from bigkernel import __version__
from bigkernel.arrays import Array, DType
from bigkernel.data import atomic_write
from bigkernel.errors import AccuracyWarning, ConfigError, DataError, PlanTooLargeError
from bigkernel.kernels.algebra import Kernel, OnColumns, PreparedLandmarks, Product, Scaled, Sum
from bigkernel.kernels.feature_maps import LandmarkMap, LandmarkSlices
from bigkernel.kernels.functions import KERNELS, Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.kernels.given import Pairwise
from bigkernel.models.predictor import Predictor, inside
from bigkernel.statistics.blend import Blend, Tree
from bigkernel.statistics.predictor import Predictor as Expansion
from bigkernel.statistics.predictor import Projection
from bigkernel.streaming.chunk import Chunk, RowMap
from bigkernel.streaming.row_maps import Circles, LinearMap, Scale, SideBySide, Sphere, Standardize, UnitNorm

OPSET, IR_VERSION = 18, 8
LIMIT_BYTES = 2**31 - 1  # of a message of protobuf
_COLUMNS = np.array([1])  # an axis


@dataclass
class Graph:
    """Nodes in their order, and constants by name, which the bodies of loops and branches share."""

    onnx: Any  # the package
    dtype: DType
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)  # of names

    def __call__(self, operator: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output; inputs that are no names become constants."""
        names = [one if isinstance(one, str) else f"constant {next(self.numbers)}" for one in inputs]
        arrays = {name: np.asarray(one) for name, one in zip(names, inputs, strict=True) if not isinstance(one, str)}
        dtypes = {"f": self.dtype, "i": np.dtype(np.int64), "u": np.dtype(np.int64)}
        self.constants |= {name: one.astype(dtypes.get(one.dtype.kind, one.dtype)) for name, one in arrays.items()}
        output = output or f"{operator} {next(self.numbers)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [output], **attributes))
        return output

    def typed(self, name: str, *shape: str | int, dtype: DType | None = None) -> Any:
        """Return an input or output with its type."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(dtype or self.dtype)
        return self.onnx.helper.make_tensor_value_info(name, kind, shape)


def to_onnx(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    dtype: Literal["float32", "float64"] = "float32",
    overwrite: bool = False,
) -> Any:
    """Convert a fitted model to an ONNX graph, an `onnx.ModelProto`, and write it to `path` if given.

    The input is ``X`` (n, d). Outputs are named as by skl2onnx: ``variable`` (n, c) for numbers; for classes ``label``
    (n,), and ``probabilities`` or else ``scores`` (n, c), of which the label has the largest. A row that ``predict``
    refuses gives NaN, and a label without meaning. The metadata are a card of the model.

    Parameters
    ----------
    model : fitted estimator or Pipeline of bigkernel, Predictor, or path of a model file
    dtype : "float32" or "float64"
        Of rows and numbers. An `AccuracyWarning` says if rounding moves f at landmarks by over 1e-3 of its spread.

    Raises
    ------
    ConfigError
        onnx is not installed, or a part of the model, which is named, has no operators.
    PlanTooLargeError
        The graph exceeds the 2 GiB of a file of ONNX.
    DataError
        float32 cannot resolve the distances of landmarks; `path` exists or cannot be written.
    ModelRejectedError
        The model file is damaged.
    """
    if path is not None and os.path.exists(path) and not overwrite:
        raise DataError(f"{os.fspath(path)}: already exists; choose another path or set overwrite")
    if dtype not in ("float32", "float64"):
        raise ConfigError(f"to_onnx: dtype: expected 'float32' or 'float64', found {dtype!r}")
    try:
        onnx = import_module("onnx")
    except ImportError as error:
        raise ConfigError(f'to_onnx needs onnx ({error}): pip install "bigkernel[onnx]"') from None
    if not isinstance(model, Predictor):
        model = Predictor.load(model) if isinstance(model, str | os.PathLike) else Predictor.of(model)
    if model.table is not None:
        raise _refusal("the TableEncoder", "convert the steps behind it, to_onnx(pipeline[1:])")
    g = Graph(onnx, np.dtype(dtype))
    outputs = _outputs(g, model)
    needed = sum(array.nbytes + 256 for array in g.constants.values())  # with a node of each
    if needed > LIMIT_BYTES:
        fault = f"the graph takes {needed:,} bytes, and a file of ONNX at most {LIMIT_BYTES:,}"
        raise PlanTooLargeError(f"to_onnx: {fault}; use float32 or fewer landmarks, or serve it by Predictor.load")
    if float((card := _card(model, g.dtype))["rounding"]) > 1e-3:
        fault = f"rounding to {dtype} moves predictions at landmarks by {card['rounding']} of their spread"
        warnings.warn(f"to_onnx: {fault}; use dtype='float64'", AccuracyWarning, stacklevel=2)
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in g.constants.items()]
    made = onnx.helper.make_model(
        onnx.helper.make_graph(g.nodes, repr(model), [g.typed("X", "n", model.n_features)], outputs, constants),
        **{"producer_name": "bigkernel", "producer_version": __version__, "ir_version": IR_VERSION},
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    onnx.helper.set_model_props(made, card)
    if path is not None:
        atomic_write.require_target(path, "the graph", needed_bytes=needed)
        atomic_write.make_directories(os.path.dirname(os.path.abspath(path)))
        with atomic_write.replacing(path) as scratch:
            scratch.write_bytes(made.SerializeToString())
    return made


def _card(model: Predictor, dtype: DType) -> dict[str, str]:
    """Describe the model, and how far rounding moves f at landmarks, over its spread there."""
    kernels, landmarks, moved, whole = list[str](), 0, [0.0], model.expansion
    for part in inside(model):
        if isinstance(part, Expansion) and isinstance(features := part.features, LandmarkMap):
            kernels, landmarks = [*kernels, features.kernel.formula()], landmarks + features.width
            if dtype == np.float64:
                continue
            rows = Chunk(features.landmarks[:: -(-features.width // 256)].astype(dtype))
            each = (replace(part, features=replace(features, dtype=one)) for one in (dtype, np.dtype(np.float64)))
            rounded, exact = (expansion.values(rows) for expansion in each)
            if change := np.linalg.norm(rounded - exact):
                moved.append(float(change / np.linalg.norm(exact - exact.mean(axis=0))))
    said = dict(model.fit) | ({"rows": [one.rows for one in whole.members]} if isinstance(whole, Blend) else {})
    said |= {"kernel": "; ".join(dict.fromkeys(kernels)), "landmarks": landmarks} if kernels else {}
    said |= {"features": model.n_features if model.feature_names is None else model.feature_names.tolist()}
    classes = None if model.classes is None else model.classes.tolist()
    said |= {"classes": classes, "rounding": f"{max(moved):.1e}", "licence": ""}
    return {name: str(value) for name, value in said.items() if value is not None}


def _refusal(what: str, advice: str) -> ConfigError:
    return ConfigError(f"to_onnx: {what} has no operators of ONNX; {advice}, or serve the file by Predictor.load")


def _outputs(g: Graph, model: Predictor) -> list[Any]:
    """Add the whole model; return its outputs."""
    whole, classes, name, outputs = model.expansion, model.classes, "variable", []
    values = _values(g, whole, _mapped(g, model.row_maps, "X", model.n_features))
    if classes is not None:
        if classes.dtype.kind == "O" and not all(isinstance(label, str) for label in classes):
            raise _refusal("a mixture of labels", "fit with labels that are all text or all numbers")
        labels = classes.astype({"U": object, "i": np.int64, "u": np.int64}.get(classes.dtype.kind, classes.dtype))
        g.constants["labels"] = labels  # as they are in any dtype
        g("Gather", "labels", g("ArgMax", values, axis=1, keepdims=0), output="label")
        outputs, name = [g.typed("label", "n", dtype=labels.dtype)], "probabilities" if whole.logits else "scores"
    g("Identity", _probabilities(g, whole, values), output=name)
    return [*outputs, g.typed(name, "n", whole.width)]


def _probabilities(g: Graph, whole: Expansion | Blend, values: str) -> str:
    """Return the probabilities of values of f, or the values if the model has none."""
    logits = values if whole.log_weights is None else g("Sub", values, whole.log_weights)
    return g("Softmax", logits, axis=1) if whole.logits else values


def _mapped(g: Graph, row_maps: tuple[RowMap, ...], x: str, d: int) -> str:
    """Return rows x (n, d) after the maps."""
    for row_map in row_maps:
        match row_map:
            case Scale(factor):
                x = g("Mul", x, float(factor))
            case Standardize(mean, std):
                x = g("Div", g("Sub", x, mean), std)
            case LinearMap(centre, weights):
                x = g("MatMul", g("Sub", x, centre), weights)
            case Projection(_, inner):
                x = _values(g, inner, x)
            case UnitNorm():  # the largest value becomes 1 first, so that squares stay in range; zeros stay
                largest = g("ReduceMax", g("Abs", x), _COLUMNS)
                x = g("Div", x, g("Where", g("Equal", largest, 0.0), 1.0, largest))
                x = g("Div", x, g("Max", g("Sqrt", g("ReduceSumSquare", x, _COLUMNS)), 1.0))
            case SideBySide(chains, scales):
                each = zip(chains, scales, strict=True)
                x = g("Concat", *(g("Mul", _mapped(g, chain, x, d), float(scale)) for chain, scale in each), axis=1)
            case Circles(columns, periods):
                taken = [g("Gather", x, [column], axis=1) for column in columns]
                angles = [g("Mul", one, 2 * np.pi / period) for one, period in zip(taken, periods, strict=True)]
                points = [g(turn, angle) for angle in angles for turn in ("Cos", "Sin")]
            case Sphere(latitude, longitude, radius):
                degrees = (g("Gather", x, [column], axis=1) for column in (latitude, longitude))
                north, east = (g("Mul", angle, np.pi / 180) for angle in degrees)
                north = g("Where", g("Greater", g("Abs", north), np.deg2rad(90.0001)), np.nan, north)
                level, up = (g("Mul", g(turn, north), float(radius)) for turn in ("Cos", "Sin"))
                points = [g("Mul", level, g("Cos", east)), g("Mul", level, g("Sin", east)), up]
            case _:
                raise _refusal(f"the row map {row_map.name!r}", "apply it before, and convert the steps behind it")
        if isinstance(row_map, Circles | Sphere):  # points follow the columns that they do not replace
            kept = np.delete(np.arange(d), row_map.replaced)
            x = g("Gather", g("Concat", x, *points, axis=1), [*kept, *range(d, d + len(points))], axis=1)
        d = row_map.width(d)
    return x


def _values(g: Graph, whole: Expansion | Blend, x: str) -> str:
    """Return f of mapped rows x (n, d), (n, c); NaN for rows with NaN or infinity."""
    if isinstance(whole, Blend):
        return _blend(g, whole, x)
    features = whole.features
    assert not isinstance(features, LandmarkSlices)
    phi = _kernel(g, features.kernel, x, features.landmarks) if isinstance(features, LandmarkMap) else x
    phi = phi if features.shift is None else g("Sub", phi, features.shift)
    # φ(x)ᵀW + b + 0ᵀx
    values = g("Add", g("MatMul", phi, whole.coef), whole.intercept)
    return g("Add", values, g("ReduceSum", g("Mul", x, 0.0), _COLUMNS))


def _blend(g: Graph, whole: Blend, x: str) -> str:
    """Return Σ w(x) f(x) over members, or the logarithm of such sums of probabilities; see `Blend.fill`."""
    split = whole.shares if isinstance(whole.shares, Tree) and whole.shares.n_leaves > 1 else None
    weights = ["" for _ in whole.members] if split is None else _weights(g, split, x)
    total = g("MatMul", x, np.zeros((whole.n_features, whole.width)))
    for member, weight in zip(whole.members, weights, strict=True):
        inner = replace(g, nodes=[]) if weight else g
        # a leaf takes its own rows, at places (k, 1), and is skipped if there are none
        taken = g("NonZero", g("Greater", weight, 0.0)) if weight else ""  # not the largest weight: one may be NaN
        places = inner("Transpose", taken) if weight else ""
        own = inner("GatherND", x, places) if weight else x
        values = _values(inner, member.predictor, _mapped(inner, member.row_maps, own, whole.n_features))
        values = _probabilities(inner, member.predictor, values)
        if not weight:
            total = g("Add", total, values)
            continue
        values = inner("Mul", values, inner("Unsqueeze", inner("GatherND", weight, places), _COLUMNS))
        added, skipped = inner("ScatterND", total, places, values, reduction="add"), replace(g, nodes=[])
        ends = {"then_branch": (inner, added), "else_branch": (skipped, skipped("Identity", total))}
        branches = {
            key: g.onnx.helper.make_graph(one.nodes, key, [], [one.typed(end, "n", whole.width)])
            for key, (one, end) in ends.items()
        }
        total = g("If", g("Greater", g("Size", taken), 0), **branches)
    return g("Log", g("Max", total, float(np.finfo(g.dtype).tiny))) if whole.logits else total


def _weights(g: Graph, tree: Tree, x: str) -> Iterator[str]:
    """Yield the weights (n,) of rows x in each leaf, which go down the tree; see `Tree.leaves`."""

    def descend(weight: Any, node: int, leaves: int) -> Iterator[str]:
        if leaves == 1:
            yield weight
            return
        low, left = tree.lower[node], leaves // 2
        reach = max(tree.upper[node] - low, float(np.finfo(g.dtype).tiny))  # no row is between hard borders
        t = g("Clip", g("Div", g("Sub", g("MatMul", x, tree.directions[node]), low), reach), 0.0, 1.0)
        right = g("Mul", g("Mul", t, t), g("Sub", 3.0, g("Mul", t, 2.0)))
        yield from descend(g("Mul", weight, g("Sub", 1.0, right)), node + 1, left)
        yield from descend(g("Mul", weight, right), node + left, leaves - left)

    yield from descend(1.0, 0, tree.n_leaves)


def _kernel(g: Graph, kernel: Kernel, x: str, Z: Array) -> str:
    """Return k(x, Z) of rows, (n, m)."""
    match kernel:
        case Sum(k1, k2) | Product(k1, k2):
            return g("Add" if isinstance(kernel, Sum) else "Mul", _kernel(g, k1, x, Z), _kernel(g, k2, x, Z))
        case Scaled(inner, times):
            return g("Mul", _kernel(g, inner, x, Z), float(times))
        case OnColumns(inner, columns):
            own = np.asarray(columns, np.int64)
            return _kernel(g, inner, g("Gather", x, own, axis=1), Z[:, own])
        case Pairwise():  # cosine, as `Predictor` has no other
            return g("MatMul", _mapped(g, (UnitNorm(),), x, Z.shape[1]), UnitNorm().apply(Z.copy()).T)
    prepared = kernel.bind(Z, g.dtype)  # refuses distances that the dtype cannot resolve
    if isinstance(kernel, Laplacian):
        # ‖x−z‖₁, a row at a time: no product gives it, and all differences are n·m·d numbers
        loop = replace(g, nodes=[])
        sums = loop("ReduceSum", loop("Abs", loop("Sub", Z, "row")), _COLUMNS, keepdims=0)
        ends = [loop.typed("row", Z.shape[1])], [loop.typed(sums, len(Z))]
        body = g.onnx.helper.make_graph(loop.nodes, "distances", *ends)
        return g("Exp", g("Mul", g("Scan", x, body=body, num_scan_inputs=1), -1 / float(kernel.sigma)))
    argument = _products(g, prepared, x)
    match kernel:
        case Polynomial() | Sigmoid():
            argument = g("Add", g("Mul", argument, float(kernel.gamma)), float(kernel.coef0))
            return g("Tanh", argument) if isinstance(kernel, Sigmoid) else g("Pow", argument, float(kernel.degree))
        case Linear() | Gaussian():
            return g("Exp", argument) if isinstance(kernel, Gaussian) else argument
        case Matern(nu=nu):
            r = g("Sqrt", g("Neg", argument))
            decay, factor = g("Exp", g("Neg", r)), g("Add", r, 1.0)
            factor = factor if nu == 1.5 else g("Sub", factor, g("Mul", argument, 1 / 3))
            return decay if nu == 0.5 else g("Mul", factor, decay)
    raise _refusal(f"the kernel {kernel.formula()}", "fit with one of " + ", ".join(KERNELS))


def _products(g: Graph, prepared: PreparedLandmarks, x: str) -> str:
    """Return ⟨x, z⟩ or −γ‖x−z‖² (n, m); see `PreparedLandmarks.multiply`."""
    if prepared.shift is None:
        return g("MatMul", x, prepared.weights)
    x = g("Sub", x, prepared.shift)
    x = x if prepared.stretch is None else g("Mul", x, prepared.stretch)
    squares = g("ReduceSumSquare", x, _COLUMNS)
    # [x, ‖x‖²] · [2γz, −γ] − γ‖z‖²
    product = g("Add", g("MatMul", g("Concat", x, squares, axis=1), prepared.weights[:-1]), prepared.weights[-1])
    if prepared.touching is not None:
        # the product loses half of the digits where ‖x−z‖² < √eps·‖x‖²: there from differences, of pairs (i, j)
        limits = g("Mul", squares, -prepared.gamma * float(np.finfo(g.dtype).eps) ** 0.5)
        pairs = g("NonZero", g("Greater", product, limits))
        rows, points = (g("Gather", pairs, side) for side in (0, 1))
        gaps = g("Sub", g("Gather", x, rows), g("Gather", prepared.touching, points))
        small = g("Mul", g("ReduceSumSquare", gaps, _COLUMNS, keepdims=0), -prepared.gamma)
        product = g("ScatterND", product, g("Transpose", pairs), small)
    return g("Min", product, 0.0)
