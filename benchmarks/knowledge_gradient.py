"""Discrete knowledge gradient of a plain Gaussian process, in closed form, in NumPy.

Matern-5/2 with a lengthscale per dimension, mean 0, fixed hyperparameters. The value of a candidate
i is the mean over K nodes z_k of max_j (mean_j + gain_ij z_k), with gain_ij = S_ij / sqrt(S_ii +
noise) and S the posterior covariance (Frazier, Powell and Dayanik 2009, eq. 13).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve_triangular
from scipy.stats import norm


@dataclass(frozen=True)
class Surface:
    """A Gaussian process over N points, some of which were observed.

    Attributes:
        points: in units of which `lengthscale` is one.
        rows, values: which points were observed, and with what outcome.
        variance, noise: of the process, of an observation.
    """

    points: Float[np.ndarray, "N d"]
    lengthscale: Float[np.ndarray, " d"]
    rows: Int[np.ndarray, " n"]
    values: Float[np.ndarray, " n"]
    variance: float = 0.16
    noise: float = 1e-3

    def kernel(self, a: Float[np.ndarray, "k d"], b: Float[np.ndarray, "m d"]) -> np.ndarray:
        """Prior covariances, k x m."""
        apart = (a[:, None, :] - b[None, :, :]) / self.lengthscale
        distance = np.sqrt(5 * (apart**2).sum(axis=-1))
        return self.variance * (1 + distance + distance**2 / 3) * np.exp(-distance)

    def posterior(self) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, "N N"]]:
        """Mean and covariance of all points."""
        seen = self.points[self.rows]
        gram = self.kernel(seen, seen) + self.noise * np.eye(len(seen))
        factor = np.linalg.cholesky(gram)
        root = solve_triangular(factor, self.kernel(seen, self.points), lower=True)
        mean = root.T @ solve_triangular(factor, self.values, lower=True)
        return mean, self.kernel(self.points, self.points) - root.T @ root


def normal_nodes(count: int) -> Float[np.ndarray, " K"]:
    """The medians of `count` equally likely parts of the standard normal distribution."""
    return norm.ppf((np.arange(count) + 0.5) / count)


def knowledge_gradient(surface: Surface, nodes: Float[np.ndarray, " K"]) -> Float[np.ndarray, " N"]:
    """The expected highest mean after observing each of the points once more."""
    mean, covariance = surface.posterior()
    gain = covariance / np.sqrt(np.diagonal(covariance) + surface.noise)[:, None]
    return np.mean([(mean + gain * node).max(axis=1) for node in nodes], axis=0)
