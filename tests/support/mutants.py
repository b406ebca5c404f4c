"""Mutants of the core, each of which some test must find: `python tests/support/mutants.py [--list] [--only N]`.

A mutant is one exact change of a module. It is made in a copy of the package in a temporary directory, and the tests
that should see it run there until the first fails. A text that is not in its module any more, or is there twice, stops
the script: the table has to follow the code.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded, as in tests/conftest.py

import pytest

LIBRARIES = "numpy scipy.linalg pandas sklearn.pipeline dask.array distributed dask_ml.wrappers zarr"
ROOT = Path(__file__).parents[2]
SECONDS = 300  # a mutant may wait for ever, too


class Mutant(NamedTuple):
    """In `file` of the package, `old` (there once) becomes `new`; `tests` (file, or file::test) should see it."""

    what: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    # ------------------------------------------------ streaming
    Mutant(
        "chunks: a segment loses its last step",
        "streaming/plan.py",
        "tuple(bounds[cuts[i] : cuts[i + 1] + 1])",
        "tuple(bounds[cuts[i] : max(cuts[i] + 2, cuts[i + 1])])",
        "streaming/test_plan.py",
    ),
    Mutant(
        "plan: partial results in the merge tree are not counted",
        "streaming/plan.py",
        "max(3, min(own + tasks, waiting + 1 + tasks))",
        "3",
        "streaming/test_plan.py::test_a_worker_holds_no_more_partials_than_were_counted",
    ),
    Mutant(
        "plan: the cap of a worker's memory is not applied",
        "streaming/plan.py",
        "if needed <= limit_bytes:",
        "if needed <= 2 * limit_bytes:",
        "streaming/test_plan.py",
    ),
    Mutant(
        "merge tree: the odd node at the end is dropped",
        "streaming/merge_tree.py",
        "names = above + names[len(names) - len(names) % 2 :]",
        "names = above",
        "engine/test_sweep.py::test_the_tree_merges_every_segment_once_in_order",
    ),
    Mutant(
        "merge tree: merges are swapped",
        "streaming/merge_tree.py",
        "merges.append((node, names[i], names[i + 1]))",
        "merges.append((node, names[i + 1], names[i]))",
        "engine/test_sweep.py::test_the_tree_merges_every_segment_once_in_order",
    ),
    Mutant(
        "folds: the row number starts at the chunk",
        "streaming/folds.py",
        "ids = np.arange(chunk.start, chunk.start + len(chunk))",
        "ids = np.arange(len(chunk))",
        "streaming/test_folds.py",
    ),
    Mutant(
        "folds: rows of another domain are tested in the last one",
        "streaming/folds.py",
        "return np.where(self.domains[place] == chunk.domain, place, -1)",
        "return place",
        "streaming/test_folds.py",
    ),
    Mutant(
        "rows: infinity passes",
        "streaming/chunk.py",
        "    wrong = np.isinf(values) if missing else ~np.isfinite(values)",
        "    wrong = np.isinf(values) if missing else np.isnan(values)",
        "streaming/test_chunk.py",
    ),
    Mutant(
        "rows: those left out keep their weight",
        "streaming/chunk.py",
        "weight=np.where(bad, 0.0, weight)",
        "weight=weight",
        "faults/test_bad_rows.py::test_the_result_is_that_of_the_cleaned_data",
    ),
    # ------------------------------------------------ kernels
    Mutant(
        "gaussian: the 2 of 2σ² is lost",
        "kernels/functions.py",
        "return _isotropic(self.sigma, lambda sigma: 1 / (2 * sigma**2))",
        "return _isotropic(self.sigma, lambda sigma: 1 / sigma**2)",
        "kernels/test_functions.py",
    ),
    Mutant(
        "matern: r²/3 of ν = 5/2 becomes r²/2",
        "kernels/functions.py",
        "strip *= 0 if self.nu == 1.5 else 1 / 3",
        "strip *= 0 if self.nu == 1.5 else 1 / 2",
        "kernels/test_functions.py",
    ),
    Mutant(
        "laplacian: the sign of its exponent",
        "kernels/functions.py",
        "strip *= -self.gamma",
        "strip *= self.gamma",
        "kernels/test_functions.py",
    ),
    Mutant(
        "polynomial: one factor too many",
        "kernels/functions.py",
        "for _ in range(int(self.degree) - 1):",
        "for _ in range(int(self.degree)):",
        "kernels/test_functions.py",
    ),
    Mutant(
        "bandwidth: weights of the rows do not count",
        "kernels/functions.py",
        "weights = np.ones(len(Z)) if weight is None or not weight.sum() > 0 else weight",
        "weights = np.ones(len(Z))",
        "kernels/test_functions.py",
    ),
    Mutant(
        "float32: distances that it cannot resolve pass",
        "kernels/algebra.py",
        "if not blur < 0.01:",
        "if not blur < 10:",
        "kernels/test_functions.py",
    ),
    Mutant(
        "mirror: the diagonal of a strip is added twice",
        "kernels/blas.py",
        "total[i:j, i:j] = corner + np.triu(corner, 1).T",
        "total[i:j, i:j] = corner + np.triu(corner).T",
        "statistics/test_moments.py",
    ),
    Mutant(
        "leverage scores: the ridge is lost",
        "kernels/landmark_sampling.py",
        "core.flat[:: len(core) + 1] += ridge / weights",
        "core.flat[:: len(core) + 1] += 1 / weights",
        "kernels/test_landmark_sampling.py",
    ),
    Mutant(
        "rpcholesky: what is drawn stays in the urn",
        "kernels/landmark_sampling.py",
        'left[rows] -= np.einsum("ij,ij->i", G, G)',
        'left[rows] -= 0 * np.einsum("ij,ij->i", G, G)',
        "kernels/test_landmark_sampling.py",
    ),
    Mutant(
        "wide Cholesky: a panel forgets those before it",
        "kernels/panels.py",
        "panel = L[i:, i:j] - L[i:, :i] @ L[i:j, :i].T",
        "panel = L[i:, i:j] + 0 * (L[i:, :i] @ L[i:j, :i].T)",
        "kernels/test_panels.py",
    ),
    Mutant(
        "linear: a direction that rounding hides counts as null",
        "solvers/linear.py",
        "lost = left if missed[0] or",
        "lost = 0 if missed[0] or",
        "estimators/test_linear.py",
    ),
    Mutant(
        "linear by QR: the mean hides directions",
        "solvers/triangle_linear.py",
        "    taken = not fit_intercept and float(np.abs(top).max(initial=0)) > 1",
        "    taken = False",
        "estimators/test_linear_by_qr.py",
    ),
    Mutant(
        "linear by QR: null directions stay in the coefficients",
        "solvers/triangle_linear.py",
        "np.linalg.qr(to.expand(stacked.null))[0]",
        "np.zeros((len(v), 0))",
        "estimators/test_linear_by_qr.py",
    ),
    Mutant(
        "linear: predictions are made about 0",
        "estimators/linear.py",
        "if fit.solution.level is None else fit.basis.centred()",
        "if fit.solution.level is None else IdentityMap(1.1 * fit.basis.shift)",
        "estimators/test_linear_by_qr.py",
    ),
    Mutant(
        "linear: directions that may be null are not looked at",
        "estimators/triangle_sweeps.py",
        "return not max(errors.total, errors.doubt) <= ENOUGH and",
        "return not errors.total <= ENOUGH and",
        "estimators/test_linear_by_qr.py",
    ),
    Mutant(
        "graph: anchors weigh nothing",
        "solvers/anchor_graph.py",
        "    L: Array = G - half.T @ half",
        "    L: Array = G - 0 * half.T @ half",
        "estimators/test_sssl.py",
    ),
    # ------------------------------------------------ statistics
    Mutant(
        "moments: rows count by their weight, not its root",
        "statistics/moments.py",
        "rows *= np.sqrt(w).astype(rows.dtype)[:, None]",
        "rows *= w.astype(rows.dtype)[:, None]",
        "statistics/test_moments.py",
    ),
    Mutant(
        "moments: Σ w y² forgets the weight",
        "statistics/moments.py",
        'total["q"][at] += (weighted * values).sum(axis=0)',
        'total["q"][at] += (values * values).sum(axis=0)',
        "statistics/test_moments.py",
    ),
    Mutant(
        "moments: a centre that is not undone in C",
        "statistics/moments.py",
        '"C": total["C"] + a[:, None] * t[:, None, :],',
        '"C": total["C"],',
        "estimators/test_sssl.py",
    ),
    Mutant(
        "moments: the shift of the targets comes back half in q",
        "statistics/moments.py",
        '"q": total["q"] + 2 * shift * t + n[:, None] * shift**2,',
        '"q": total["q"] + shift * t + n[:, None] * shift**2,',
        "estimators/test_kernel_ridge.py",
    ),
    Mutant(
        "moments: folds are off by one",
        "statistics/moments.py",
        "for number in (*range(self.folds.count), -1)]",
        "for number in (-1, *range(self.folds.count))]",
        "search/test_search.py",
    ),
    Mutant(
        "moments: negative weights pass",
        "statistics/moments.py",
        "sound = np.isfinite(w) & (w >= 0)",
        "sound = np.isfinite(w)",
        "statistics/test_moments.py",
    ),
    Mutant(
        "cells: an unlabelled row counts for the last class",
        "statistics/domain_cells.py",
        "return np.where(missing, self.n_classes, place if self.position is None else self.position[place])",
        "return place if self.position is None else self.position[place]",
        "statistics/test_domain_cells.py",
    ),
    Mutant(
        "grid scores: truth and guess are swapped",
        "statistics/grid_scores.py",
        "cell = (np.arange(k) * c + truth[:, None]) * c + values.argmax(axis=2)",
        "cell = (np.arange(k) * c + values.argmax(axis=2)) * c + truth[:, None]",
        "statistics/test_grid_scores.py",
    ),
    Mutant(
        "witness: the column of ones is forgotten",
        "statistics/witness.py",
        "+ sums[:, None] * V[p] - self._seen[:p]",
        "- self._seen[:p]",
        "estimators/test_accuracy.py::test_the_witness_sees_the_rounding_of_products_and_sums",
    ),
    Mutant(
        "ridge: whitened moments keep the shift of C",
        "solvers/ridge.py",
        "C + np.outer(a, moments.t), s + moments.n * a",
        "C, s + moments.n * a",
        "estimators/test_accuracy.py",
    ),
    Mutant(
        "accuracy: the rounding of the sums is not counted",
        "solvers/accuracy.py",
        "parts = of_matrix(known.sums, of_sums), ",
        "parts = 0.0 * of_matrix(known.sums, of_sums), ",
        "estimators/test_accuracy.py",
    ),
    Mutant(
        "search: coarse kernels are not swept again",
        "search/shared_sweeps.py",
        "            if wider is None:",
        "            if wider is not None:",
        "search/test_right_scores.py",
    ),
    # ------------------------------------------------ solvers
    Mutant(
        "linear: the mean is not taken off",
        "solvers/linear.py",
        "missed = small.target_mean - mean @ v",
        "missed = small.target_mean - small.mean @ v",
        "estimators/test_linear.py",
    ),
    Mutant(
        "ridge: the penalty is lost",
        "solvers/triangles.py",
        "regular[np.diag_indices(len(G))] += alpha",
        "regular[np.diag_indices(len(G))] += 0.5 * alpha",
        "solvers/test_ridge_solver.py",
    ),
    Mutant(
        "ridge: C is not centred",
        "solvers/ridge.py",
        "return Reduced(float(moments.n), G, C - np.outer(mean, moments.t), np.maximum(q, 0), mean, target_mean)",
        "return Reduced(float(moments.n), G, C, np.maximum(q, 0), mean, target_mean)",
        "solvers/test_ridge_solver.py",
    ),
    Mutant(
        "ridge: the intercept forgets the mean of the features",
        "solvers/ridge.py",
        "return whitening.expand(w), small.target_mean - small.mean @ w, error",
        "return whitening.expand(w), small.target_mean, error",
        "solvers/test_ridge_solver.py",
    ),
    Mutant(
        "unrotated: moments stay centred without an intercept",
        "solvers/unrotated.py",
        "return B + np.outer(self.along, t), C + np.outer(self.gram.mean, t)",
        "return B, C",
        "solvers/test_unrotated.py",
    ),
    Mutant(
        "unrotated: eigenvalues below −α/2 pass",
        "solvers/unrotated.py",
        "if not least > alpha / 2:",
        "if not least > 0:",
        "solvers/test_unrotated.py",
    ),
    Mutant(
        "unrotated: a solve that loses digits is taken",
        "solvers/ridge.py",
        "if not errors.solve <= _SOLVED:",
        "if np.isnan(errors.solve):",
        "solvers/test_unrotated.py",
    ),
    Mutant(
        "triangles: a product reads both triangles",
        "solvers/triangles.py",
        "corner, above = np.triu(self.array[i:j, i:j], 1), self.array[:i, i:j]",
        "corner, above = self.array[i:j, i:j], self.array[:i, i:j]",
        "solvers/test_triangles.py",
    ),
    Mutant(
        "ridge: exact form without the roots of the weights",
        "solvers/exact.py",
        "root: Array = np.sqrt(weight)",
        "root: Array = np.asarray(weight)",
        "solvers/test_ridge_solver.py",
    ),
    Mutant(
        "whitening: landmarks in the wrong order",
        "solvers/ridge.py",
        "return solve_lower(self.factor, C[self.pivots])",
        "return solve_lower(self.factor, C[np.sort(self.pivots)])",
        "solvers/test_ridge_solver.py",
    ),
    Mutant(
        "gcv: the intercept takes no degree of freedom",
        "solvers/gcv.py",
        "left = (self.n - self.fixed - len(self.values) + float(left_out.sum())) / self.n",
        "left = (self.n - len(self.values) + float(left_out.sum())) / self.n",
        "solvers/test_gcv.py::test_the_spectral_score_is_that_of_the_dense_hat_matrix",
    ),
    Mutant(
        "gcv: directions of rounding count",
        "solvers/gcv.py",
        "keep = values > max(len(values), n) * np.finfo(np.float64).eps",
        "keep = values > -1e9 * np.finfo(np.float64).eps",
        "solvers/test_gcv.py",
    ),
    Mutant(
        "grid: 2b⟨s,w⟩ is lost",
        "solvers/penalty_grid.py",
        '- 2 * tested.t + 2 * np.einsum("r,krc->kc", tested.s, weights))',
        '- 2 * tested.t + np.einsum("r,krc->kc", tested.s, weights))',
        "solvers/test_penalty_grid.py",
    ),
    Mutant(
        "posterior: the noise of an observation is not added",
        "solvers/posterior.py",
        "return total + (self.noise + self.constant)",
        "return total + self.constant",
        "solvers/test_posterior.py",
    ),
    Mutant(
        "sssl: the root of the eigenvalues is missing",
        "solvers/eigenfunctions.py",
        "basis, of_labelled = W * np.sqrt(values),",
        "basis, of_labelled = W * values,",
        "solvers/test_ridge_solver.py",
    ),
    Mutant(
        "ridge: weak directions are dropped",
        "solvers/factors.py",
        "if reciprocal <= relative and alpha > 0:",
        "if reciprocal <= relative and alpha < 0:",
        "solvers/test_eigenfunctions.py",
    ),
    Mutant(
        "error: sums are hardly moved",
        "solvers/perturbation.py",
        'out["G"][g] += whitening.restore(whitening.restore(E).T)',
        'out["G"][g] += 1e-3 * whitening.restore(whitening.restore(E).T)',
        "estimators/test_told_errors.py",
    ),
    Mutant(
        "gcv by conjugate gradients: targets stand for probes",
        "estimators/iterative.py",
        "left = float(objective[columns[c:]].mean()) / rows",
        "left = float(objective[columns[:c]].mean()) / rows",
        "estimators/test_iterative.py",
    ),
    Mutant(
        "congruence: the other triangle stays",
        "solvers/triangles.py",
        "    mirror(out.T)  # its lower triangle is whole\n    return",
        "    return",
        "solvers/test_triangles.py",
    ),
    Mutant(
        "xnv: the penalty is upside down",
        "solvers/xnv.py",
        "charged: Array = (1 - self.correlations) / self.correlations",
        "charged: Array = self.correlations / (1 - self.correlations + 1e-3)",
        "solvers/test_xnv_solver.py",
    ),
    Mutant(
        "sssl: eigenvectors of the wrong end",
        "solvers/ridge.py",
        "return values[::-1][:count], vectors[:, ::-1][:, :count]",
        "return values[:count], vectors[:, :count]",
        "solvers/test_ridge_solver.py",
    ),
    # ------------------------------------------------ storage
    Mutant(
        "arrays: no crc32c",
        "storage/zarr_arrays.py",
        "[ZstdCodec(level=1), Crc32cCodec()] if compress else [Crc32cCodec()]",
        "[ZstdCodec(level=1)] if compress else []",
        "storage/test_zarr_arrays.py::test_every_array_ends_in_crc32c_and_stores_its_zeros",
    ),
    Mutant(
        "arrays: missing chunks are zeros",
        "storage/zarr_arrays.py",
        "    lost = missing_chunks(array, 100)\n    if lost:",
        "    lost = missing_chunks(array, 100)\n    if len(lost) > 1:",
        "storage/test_zarr_arrays.py::test_a_deleted_chunk_is_named_and_never_reads_as_zeros",
    ),
    Mutant(
        "arrays: the digest does not see shapes",
        "storage/zarr_arrays.py",
        'total.update(f"{name} {array.dtype.str} {array.shape}\\n".encode())',
        'total.update(f"{name} {array.dtype.str}\\n".encode())',
        "storage/test_zarr_arrays.py::test_a_digest_tells_names_dtypes_shapes_and_values_apart",
    ),
    Mutant(
        "seals: metadata is not compared",
        "storage/seals.py",
        "        if _sha256(root / name) != digest:",
        "        if not (root / name).exists():",
        "storage/test_zarr_arrays.py::test_every_bit_of_the_metadata_and_of_the_seal_is_watched",
    ),
    Mutant(
        "seals: swapped chunks pass",
        "storage/seals.py",
        "        elif digest != array.chunks:",
        "        elif len(digest) != len(array.chunks):",
        "storage/test_corpus.py::test_checking_finds_sound_chunks_in_the_wrong_place",
    ),
    Mutant(
        "marks: a chunk that was exchanged passes",
        "storage/chunk_marks.py",
        "            if size != self.sizes[place] or end",
        "            if size < 0 and end",
        "faults/test_changing_stores.py",
    ),
    Mutant(
        "writing: no fsync of the files",
        "storage/atomic_write.py",
        "            _sync(scratch)\n",
        "",
        "storage/test_zarr_arrays.py::test_a_group_is_on_the_disk_before_it_has_its_name",
    ),
    Mutant(
        "writing: what was there is replaced without being asked",
        "storage/atomic_write.py",
        "    if target.exists() and not overwrite:",
        "    if target.exists() and overwrite is None:",
        "storage/test_zarr_arrays.py::test_overwriting_must_be_asked_for_and_replaces_all",
    ),
    Mutant(
        "predictors: what was prepared of one fit serves another",
        "estimators/prediction.py",
        "    found = _KEPT.get(fit)\n",
        "    found = next(iter(_KEPT.values()), None)\n",
        "estimators/test_prediction.py::test_another_fit_is_predicted_from_its_own_landmarks",
    ),
    Mutant(
        "predictors: arrays that were changed pass",
        "serving/file.py",
        "if zlib.crc32(array.data) != crc32:",
        "if False:",
        "serving/test_predictor.py::test_every_damaged_byte_and_every_cut_is_seen",
    ),
    Mutant(
        "runs: a JSON file is not synchronised",
        "storage/atomic_write.py",
        '            with open(scratch, "rb") as file:\n                os.fsync(file.fileno())\n',
        "",
        "storage/test_run_directory.py::test_a_json_file_is_on_the_disk_before_it_has_its_name",
    ),
    Mutant(
        "runs: another job is resumed",
        "storage/run_directory.py",
        "                if job.get(name) != found.get(name):",
        "                if name not in job:",
        "storage/test_run_directory.py::test_another_job_is_refused_and_the_field_named",
    ),
    Mutant(
        "runs: the digest of a partial is not compared",
        "storage/run_directory.py",
        "        found = zarr_arrays.digest(values)\n        if found != digest:",
        "        found = zarr_arrays.digest(values)\n        if not found:",
        "storage/test_run_directory.py::test_reading_a_partial_back_checks_its_digest",
    ),
    Mutant(
        "runs: the seal of a receipt is not compared",
        "storage/run_directory.py",
        'value.pop("sha256", None) != _seal(value)',
        'value.pop("sha256", None) is None',
        "faults/test_integrity.py",
    ),
    Mutant(
        "locks: a lock that is held is taken",
        "storage/run_lock.py",
        '    if found is not None and found["alive"]:',
        '    if found is not None and found["alive"] is None:',
        "faults/test_processes.py::test_F29_a_frozen_holder_is_alive_and_one_of_another_host_is_judged_by_its_files_age",
    ),
    Mutant(
        "locks: the host is not looked at",
        "storage/run_lock.py",
        '    if holder["host"] != socket.gethostname() or namespace',
        "    if namespace",
        "faults/test_processes.py::test_F29_a_frozen_holder_is_alive_and_one_of_another_host_is_judged_by_its_files_age",
    ),
    Mutant(
        "locks: a container is not told apart",
        "storage/run_lock.py",
        " or namespace != _namespace():",
        ":",
        "faults/test_processes.py::test_F29_process_numbers_of_another_namespace_mean_nothing",
    ),
    Mutant(
        "locks: a driver that lost its lock goes on",
        "storage/run_lock.py",
        "        if not self._ours():\n            raise RunLocked",
        "        if not self.path:\n            raise RunLocked",
        "faults/test_processes.py::test_F29_a_driver_whose_lock_was_taken_stops_before_it_publishes_more",
    ),
    # ------------------------------------------------ engine
    Mutant(
        "rows: bad rows are not looked at",
        "engine/rows.py",
        "            chunk.require_sound(self.name)\n",
        "",
        "faults/test_bad_rows.py::test_bad_rows_are_refused_with_array_first_rows_and_count",
    ),
    Mutant(
        "preflight: versions of the workers are not compared",
        "engine/preflight.py",
        "            if version != mine[name]:",
        "            if name not in mine:",
        "faults/test_preflight.py::test_F35_a_worker_of_another_version_is_named_with_both",
    ),
    Mutant(
        "tasks: input and output are not tried again",
        "engine/tasks.py",
        "times=job.retries,",
        "times=0,",
        "engine/test_sweep.py::test_an_error_of_the_disk_that_passes_is_tried_again",
    ),
    # ------------------------------------------------ estimators, search, ingest
    Mutant(
        "kernel ridge: the intercept is missing",
        "estimators/ridge.py",
        "intercept=(intercept if flag else intercept - shift) + shift,",
        "intercept=intercept * 0 + shift,",
        "estimators/test_kernel_ridge.py",
    ),
    Mutant(
        "models: the CRC-32 of an array is not compared",
        "models/file.py",
        "if zlib.crc32(_bytes_of(array)) != self.crc32[name]:",
        "if not self.crc32[name]:",
        "models/test_hostile_files.py::test_every_changed_byte_and_every_cut_is_an_error",
    ),
    Mutant(
        "search: a search trains on the rows that it tests",
        "search/splits.py",
        "        if (trained & tested).any():",
        "        if (trained & tested).all():",
        "search/test_refusals.py",
    ),
    Mutant(
        "ingest: a row may be NaN",
        "ingest/convert.py",
        "    if bad is not None:",
        "    if bad is not None and bad.sum() > 1:",
        "ingest/test_several.py::test_errors_count_the_rows_of_their_own_file",
    ),
    Mutant(
        "split: the boundary belongs to the share before",
        "ingest/split.py",
        'side = np.searchsorted(ends, place, side="right") + 1',
        'side = np.searchsorted(ends, place, side="right")',
        "ingest/test_several.py::test_a_split_puts_every_row_on_one_side_by_the_hash_of_the_folds",
    ),
]


def changed(mutant: Mutant, package: Path) -> str:
    """The text of its module after the change; a SystemExit where the text to change is not there exactly once."""
    text = (package / mutant.file).read_text(encoding="utf-8")
    if (count := text.count(mutant.old)) != 1:
        raise SystemExit(
            f"{mutant.file}: {mutant.what}: text {'not found' if not count else 'there twice'}: {mutant.old}"
        )
    return text.replace(mutant.old, mutant.new)


def begun(place: Path, *selections: str) -> int:
    """Begin tests on the package in `place`, until one fails, in a child of this process, which has the libraries."""
    if child := os.fork():
        return child
    code = 70
    try:
        os.setsid()
        with open(place / "log", "w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.chdir(place)
        sys.path.insert(0, str(place))
        sys.dont_write_bytecode = True
        os.environ.update(PYTHONPATH=str(place), PYTHONDONTWRITEBYTECODE="1")
        words = ["-x", "-q", "-n0", "-m", "", "-p", "no:cacheprovider", f"--rootdir={ROOT}", f"-c{ROOT}/pyproject.toml"]
        words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of libraries that this process has loaded
        words += [f"--basetemp={place}/tmp", *(f"{ROOT}/tests/{selection}" for selection in selections)]
        code = int(pytest.main(words))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def ended(child: int, place: Path, seconds: float) -> tuple[int, str] | None:
    """The exit code of a child and which test failed, once it has ended or had its time; None until then."""
    status = os.waitpid(child, os.WNOHANG)
    if not status[0] and seconds > SECONDS:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return 2, "not within its time, which says nothing"
    if not status[0]:
        return None
    code, text = os.waitstatus_to_exitcode(status[1]), (place / "log").read_text(errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (?:\S*tests/)?(\S+)", text, re.MULTILINE)
    return code, failed[1] if failed else text[-300:] if code else ""


def copied(place: Path) -> Path:
    """A compiled copy of the package in `place`."""
    shutil.copytree(ROOT / "bigkernel", place / "bigkernel", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(place, quiet=1)
    return place


def results(chosen: dict[int, Mutant], jobs: int, temporary: str) -> Iterator[tuple[int, int, str, float]]:
    """(number, exit code, test that failed, seconds) of every mutant, as they end; 0: of the package as it is."""
    free = [copied(Path(temporary, str(job))) for job in range(jobs)]
    waiting = [(0, None), *chosen.items()]
    running: list[tuple[int, int, Path, Path, bytes, float]] = []
    while waiting or running:
        if waiting and free and (waiting[0][0] or not running):
            (number, mutant), place = waiting.pop(0), free.pop()
            module = place / "bigkernel" / (mutant.file if mutant else "__init__.py")
            before = module.read_bytes()
            if mutant:
                for compiled in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
                    compiled.unlink()
                module.write_text(changed(mutant, place / "bigkernel"), encoding="utf-8")
            selections = [mutant.tests] if mutant else sorted({mutant.tests for mutant in chosen.values()})
            running.append((number, begun(place, *selections), place, module, before, time.monotonic()))
            continue
        for one in running:
            number, child, place, module, before, start = one
            if (found := ended(child, place, time.monotonic() - start if number else 0.0)) is not None:
                running.remove(one)
                module.write_bytes(before)
                free.append(place)
                yield number, *found, time.monotonic() - start
                break
        else:
            time.sleep(0.05)


def main() -> None:
    """Make the mutants, and print which test found each; the exit code is the number of those that survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    wanted = parser.parse_args()
    chosen = {n: mutant for n, mutant in enumerate(MUTANTS, 1) if not wanted.only or n in wanted.only}
    for mutant in chosen.values():
        changed(mutant, ROOT / "bigkernel")
    if wanted.list:
        for n, mutant in chosen.items():
            print(f"{n:2} {mutant.file:30} {mutant.what} ({mutant.tests})")
        return
    for name in LIBRARIES.split():
        importlib.import_module(name)
    survived = 0
    with tempfile.TemporaryDirectory() as temporary:
        for n, code, found, seconds in results(chosen, wanted.jobs, temporary):
            if not n:
                print(f"   {seconds:5.1f} s  without any mutant  <- {found or 'nothing: all pass'}", flush=True)
                continue
            survived += code != 1
            verdict = found if code == 1 else "SURVIVED" if code == 0 else f"pytest ends with {code}: {found}"
            print(f"{n:2} {seconds:5.1f} s  {chosen[n].file}: {chosen[n].what}  <- {verdict}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} were found")
    sys.exit(survived)


if __name__ == "__main__":
    main()
