"""JAX numerics of the decision engine: arrays in, arrays out.

Letters, the same in every module:

| letter | meaning |
| --- | --- |
| W, C, L | workloads, configs, load levels; N = W·C·L cells, in that order, absent ones masked |
| P, M | outputs, of which M = P - 1 are SLO metrics |
| R | latent processes, R = P |
| D, E | numeric features of a cell (the first is log2 load), categorical features |
| Q | outputs for which there is a guess: P or none |
| n | measured cells, m observed values of single outputs; both padded to a bucket |
| K, S | fantasies of one candidate, draws of the hyperparameters |
| G, g | GPUs of the fleet, GPUs of one replica |
| κ | capacity of one replica, requests/s; κ^L and κ^U its bounds |
| V, Γ | value of an allocation, decision gap V^U - V^L |

Output 0 is log throughput, relative to the offered rate when a load is a rate; the others are
log(metric / SLO), so 0 is the boundary.

Functions are pure, jitted and keep the dtype of their arguments; float64 needs the caller's scope.
"""
