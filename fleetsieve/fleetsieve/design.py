"""Config features as the arrays that the model's kernels take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fleetsieve.errors import InputError

# From this ratio of largest to smallest on, a positive feature counts in octaves.
_WIDE = 8.0
Features = Mapping[str, float | str]


@dataclass(frozen=True)
class Design:
    """Numeric and categorical features of C configs; constant ones are left out.

    Attributes:
        features: tp, and positive features of wide range, in log2; the others standardised.
        names: names of the D numeric features.
        categories: codes 0, 1, .. per categorical feature; a config without it has its own code.
        category_names: names of the E categorical features.
    """

    features: Float[np.ndarray, "C D"]
    names: tuple[str, ...]
    categories: Int[np.ndarray, "C E"]
    category_names: tuple[str, ...]

    @classmethod
    def build(cls, configs: Mapping[str, Features], gpus: Sequence[int]) -> "Design":
        """The design of `configs`, features by config name, with the GPUs of each.

        Without any feature that differs, log2 of the GPUs is the feature. Configs that no feature
        tells apart get their name as a category.

        Raises:
            InputError: a numeric feature is missing from some configs.
        """
        names = list(dict.fromkeys(n for features in configs.values() for n in features))
        texts = [n for n in names if any(isinstance(f.get(n), str) for f in configs.values())]
        numeric = {n: _values(n, configs) for n in names if n not in texts}
        coded = {n: _codes([f.get(n) for f in configs.values()]) for n in texts}
        numeric = {n: _scaled(n, v) for n, v in numeric.items() if np.ptp(v) > 0}
        coded = {n: c for n, c in coded.items() if np.ptp(c) > 0}
        if not numeric and not coded and len(set(gpus)) > 1:
            numeric = {"gpus": np.log2(np.asarray(gpus, float))}
        columns = [*numeric.values(), *coded.values()]
        if len(set(zip(*columns, strict=True)) if columns else {()}) < len(configs):
            coded["config"] = np.arange(len(configs))
        return cls(
            np.array(list(numeric.values()), float).reshape(len(numeric), len(configs)).T,
            tuple(numeric),
            np.array(list(coded.values()), int).reshape(len(coded), len(configs)).T,
            tuple(coded),
        )


def _values(name: str, configs: Mapping[str, Features]) -> Float[np.ndarray, " C"]:
    without = next((config for config, features in configs.items() if name not in features), None)
    if without is not None:
        raise InputError(
            f"config {without!r} has no feature {name!r}, which other configs have; give it a "
            "number in every config"
        )
    return np.array([float(features[name]) for features in configs.values()])


def _codes(values: Sequence[float | str | None]) -> Int[np.ndarray, " C"]:
    kinds = list(dict.fromkeys(values))
    return np.array([kinds.index(value) for value in values])


def _scaled(name: str, values: Float[np.ndarray, " C"]) -> Float[np.ndarray, " C"]:
    if name == "tp" or (values.min() > 0 and values.max() / values.min() >= _WIDE):
        return np.log2(values)
    return (values - values.mean()) / values.std()
