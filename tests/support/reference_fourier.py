"""Random Fourier features written from the papers, one number at a time; shares no code with the package.

Rahimi & Recht (NIPS 2007), table 1 for the spectra; Yu et al. (NIPS 2016), eq. 3 for orthogonal frequencies.
"""

import numpy as np
from scipy import stats


def features(X, frequencies, phases, width, origin):
    """√(2/p) [cos, sin] of every phase, (n, p); if p is odd the last cosine has its own phase."""
    phi = np.zeros((len(X), width))
    count = frequencies.shape[1]
    for i, x in enumerate(X):
        for j in range(count):
            argument = float(np.dot(x - origin, frequencies[:, j]))
            if j < width // 2:
                phi[i, j], phi[i, count + j] = np.cos(argument), np.sin(argument)
            else:
                phi[i, j] = np.cos(argument + phases[j])
    return np.sqrt(2 / width) * phi


def frequencies(kernel, seed, d, count, orthogonal):
    """Return columns (d, count): five normals for t, a length, a phase and the direction of each from 64-bit words."""
    n_words = 7 + d
    ticks = -(-n_words // 4)
    raw = [int(word) for word in np.random.Philox(key=seed).random_raw(4 * ticks * count)]
    uniform = np.array([((word >> 12) + 0.5) / 2**52 for word in raw]).reshape(count, 4 * ticks)
    made = np.zeros((d, count))
    for j, u in enumerate(uniform):
        made[:, j] = stats.cauchy.ppf(u[7:n_words]) if kernel.name == "laplacian" else stats.norm.ppf(u[7:n_words])
    if orthogonal:
        for start in range(0, count, d):
            made[:, start : start + d] = gram_schmidt(made[:, start : start + d])
        made *= np.sqrt(stats.chi2.ppf(uniform[:, 5], d))
    if kernel.name == "matern":
        degrees = round(2 * kernel.nu)
        made *= np.sqrt(degrees / (stats.norm.ppf(uniform[:, :degrees]) ** 2).sum(axis=1))
    return made / np.reshape(kernel.sigma, (-1, 1))


def gram_schmidt(columns):
    """Return orthonormal columns, each a positive multiple of its residual."""
    orthonormal = []
    for column in columns.T:
        for _ in range(2):
            for q in orthonormal:
                column = column - (q @ column) * q
        orthonormal.append(column / np.linalg.norm(column))
    return np.array(orthonormal).T
