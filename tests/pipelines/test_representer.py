"""The representer experiment: its curves, polynomials and hyper-parameters are those of the reference."""

import csv

import numpy as np
import pytest
from pipeline_runs import require_page, results_of
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from bigkernel import Gaussian, KernelRidge
from pipelines.representer import SquaredExponential, X, Y, posterior_draws

AT = np.linspace(0, 20, 57)


@pytest.mark.parametrize("kernel, gamma", [(SquaredExponential(), 1e-4), (SquaredExponential(2.5, 0.3, 0.01), 0.2)])
def test_the_printed_hyper_parameters_are_mapped(kernel, gamma):
    sigma, alpha = kernel.mapped(gamma)
    model = KernelRidge(Gaussian(sigma), alpha=alpha, noise_variance=alpha, fit_intercept=False).fit(X[:, None], Y)
    mean, std = model.predict(AT[:, None], return_std=True)
    difference = X[:, None] - X[None, :]
    K = kernel.g2 * np.exp(-kernel.A * difference**2) + kernel.w2 * np.eye(len(X))
    cross = kernel.g2 * np.exp(-kernel.A * (AT[:, None] - X[None, :]) ** 2)
    np.testing.assert_allclose(mean, cross @ np.linalg.solve(K + gamma * np.eye(len(X)), Y), atol=1e-9)
    peer = GaussianProcessRegressor(
        ConstantKernel(kernel.g2) * RBF((2 * kernel.A) ** -0.5), alpha=gamma + kernel.w2, optimizer=None
    ).fit(X[:, None], Y)
    _, expected = peer.predict(AT[:, None], return_std=True)
    np.testing.assert_allclose(kernel.g2 * std**2, expected**2 + gamma + kernel.w2, atol=1e-9)


def test_draws_have_the_mean_and_the_deviation_of_the_posterior():
    kernel, gamma = SquaredExponential(1.5, 0.1, 0.0), 0.05
    draws = posterior_draws(X, Y, AT, kernel, gamma, 4000, 1)
    sigma, alpha = kernel.mapped(gamma)
    model = KernelRidge(Gaussian(sigma), alpha=alpha, noise_variance=alpha, fit_intercept=False).fit(X[:, None], Y)
    mean, std = model.predict(AT[:, None], return_std=True)
    f_std = np.sqrt(kernel.g2 * std**2 - gamma)  # of the function, without the noise of an observation
    assert np.abs((draws.mean(axis=0) - mean) / f_std).max() < 5 / np.sqrt(4000)
    np.testing.assert_allclose(draws.std(axis=0), f_std, rtol=0.06)


@pytest.mark.slow
def test_the_command_writes_its_figures_and_matches_the_printed_formula(tmp_path):
    results = results_of("representer", "--out", tmp_path)
    assert results["difference"] < 1e-12
    assert results["sigma"] == pytest.approx(5 / np.sqrt(2))
    assert [r["fit"] for r in results["fits"]] == ["linear", "2nd order", "3rd order", "4th order", "kernel"]
    for record, degree in zip(results["fits"], (1, 2, 3, 4), strict=False):
        residual = Y - np.polyval(np.polyfit(X, Y, degree), X)
        assert record["mse"] == pytest.approx(np.mean(residual**2), rel=1e-9)
    for number in range(1, 6):
        assert (tmp_path / f"fig{number}.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "curves.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    at_nine = next(row for row in rows if float(row["x"]) == 9.0)
    assert float(at_nine["kernel"]) == pytest.approx(2.0, abs=5e-3)
    require_page(tmp_path)
