"""The mercer experiment: its definite kernels are those whose reference matrices have no negative eigenvalues."""

import numpy as np
import pytest
import reference
from pipeline_runs import results_of
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from pipelines.mercer import cases

DENSE = {
    "linear": reference.linear,
    "polynomial, p = 2, c = 1": lambda X, Z: reference.polynomial(X, Z, 2, 1.0, 1.0),
    "polynomial, p = 3, c = 0": lambda X, Z: reference.polynomial(X, Z, 3, 1.0, 0.0),
    "Gaussian, σ = 0.06": lambda X, Z: reference.gaussian(X, Z, 0.06),
    "Gaussian, σ = 0.31": lambda X, Z: reference.gaussian(X, Z, 0.31),
    "Gaussian, σ = 1.4": lambda X, Z: reference.gaussian(X, Z, 1.4),
    # exp(−r/(2σ²)) is Matérn 1/2 with ℓ = 2σ²
    "Gaussian as printed, σ = 0.31": lambda X, Z: reference.matern(X, Z, 2 * 0.31**2, 0.5),
    "Laplacian, γ = 1": lambda X, Z: reference.laplacian(X, Z, 1.0),
    "Matérn 3/2, ℓ = 0.5": lambda X, Z: reference.matern(X, Z, 0.5, 1.5),
    "sigmoid, a = 1, b = 0": lambda X, Z: reference.sigmoid(X, Z, 1.0, 0.0),
    "sigmoid, a = 1, b = 1": lambda X, Z: reference.sigmoid(X, Z, 1.0, 1.0),
    "sigmoid, a = 1, b = −1": lambda X, Z: reference.sigmoid(X, Z, 1.0, -1.0),
}


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_case_is_the_kernel_of_its_name(case):
    X = normalize(load_digits().data[:12])
    np.testing.assert_allclose(case.kernel(X, X), DENSE[case.name](X, X), atol=1e-7)
    smallest = np.linalg.eigvalsh(DENSE[case.name](X, X))[0]
    assert (smallest > -1e-12) == (case.theory == "PDS")


def test_theory_and_digits_agree(tmp_path):
    options = ["--rows", 60, "--repeats", 1, "--data", tmp_path / "none", "--out", tmp_path]
    results = results_of("mercer", *options)
    assert "scikit-learn" in results["facts"]["data"]
    assert len(results["kernels"]) == len(DENSE)
    for record in results["kernels"]:
        assert record["positive"] == (1 if record["theory"] == "PDS" else 0)
        assert (record["negative_percent"] > 0) == (record["theory"] == "not PDS")
    for name in ("spectra.png", "kernels.csv", "report.html"):
        assert (tmp_path / name).stat().st_size > 100
