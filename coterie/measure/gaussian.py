"""The privacy that Gaussian noise spends, without PyTorch: a silo's service shows it while it waits."""

import math


def gaussian_epsilon(squares: float, delta: float) -> float:
    """ε of Gaussian mechanisms whose squared ratios of sensitivity to noise have this sum; none of them sampled.

    Together they are one with that ratio μ, whose δ is known in closed form (Balle and Wang, ICML 2018, theorem 8).
    """
    if squares == 0:
        return 0.0
    import numpy as np
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    mu = math.sqrt(squares)

    def excess(epsilon: float) -> float:
        low, high = -mu / 2 - epsilon / mu, mu / 2 - epsilon / mu
        return float(ndtr(high) - np.exp(epsilon + log_ndtr(low))) - delta

    most = 1.0
    while excess(most) > 0:
        most *= 2
    return float(brentq(excess, 0.0, most)) if excess(0.0) > 0 else 0.0
